"""What is to be held still or stirred, as it travels from the command to the processes of the program."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Mapping

FACTORS_VARIABLE = "DETERMINISM_FACTORS"
"""Environment variable with the request, as JSON."""


class FactorRequest:
    """The factors of one run."""

    def __init__(self, actions: Mapping[str, str], number: int = 1) -> None:
        """Take what is asked for.

        Args:
            actions: Per factor, `fixed` or `stirred`.
            number: Which run this is, from 1; what is stirred depends on it and on nothing else.
        """
        self.actions = dict(actions)
        self.number = number

    def is_fixed(self, name: str) -> bool:
        """Whether a factor is held still."""
        return self.actions.get(name) == "fixed"

    def is_stirred(self, name: str) -> bool:
        """Whether a factor is stirred."""
        return self.actions.get(name) == "stirred"

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries the request."""
        return {FACTORS_VARIABLE: json.dumps({"actions": self.actions, "number": self.number})}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> FactorRequest:
        """The request that an environment carries.

        Raises:
            KeyError: It carries none.
        """
        return cls(**json.loads(environ[FACTORS_VARIABLE]))

"""What is to be made deterministic, as it travels from `determinism run` to the processes of the program."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENABLING_VARIABLE = "DETERMINISM_ENABLING"
"""Environment variable with the request, as JSON."""


@dataclass(frozen=True)
class EnablingRequest:
    """The arguments of `determinism.enable`."""

    seed: int | None = None
    warn_only: bool = False
    threads: int | None = None
    precision: str | None = None
    patch: bool = False
    """Whether ops without a deterministic implementation are replaced; see `determinism.patch`."""

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries the request."""
        return {ENABLING_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> EnablingRequest:
        """The request that an environment carries.

        Raises:
            KeyError: It carries none.
        """
        return cls(**json.loads(environ[ENABLING_VARIABLE]))

"""The way from a call to an object that it reaches."""

from __future__ import annotations

from typing import NamedTuple


class Trail(NamedTuple):
    """The way to an object, for messages."""

    parent: Trail | None
    template: str
    key: object

    def text(self) -> str:
        """The way as an expression."""
        steps: list[str] = []
        at: Trail | None = self
        while at is not None:
            steps.append(at._step())
            at = at.parent
        return "".join(reversed(steps)).removeprefix(".") or "the function"

    def _step(self) -> str:
        plain = isinstance(self.key, str) and self.template != "[{}]"
        shown = repr(self.key) if type(self.key) in (str, int, bytes, float, bool) else f"<{type(self.key).__name__}>"
        return self.template.format(self.key if plain else shown)

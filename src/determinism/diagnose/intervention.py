"""What an experiment changes about a run of the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from determinism.factors.catalog import FACTORS, Action
from determinism.probes.code_change import CodeChange
from determinism.probes.request import FixedSource

_MOST_NAMES = 5
_ENTROPY = "entropy"
"""The factor, and the source, that random bytes of the operating system are."""


@dataclass(frozen=True)
class Intervention:
    """Factors that are held still or stirred, and sources that are held still at their lines."""

    factors: frozenset[tuple[str, Action]] = frozenset()
    sources: frozenset[FixedSource] = field(default=frozenset())
    fresh_copy: bool = False
    """Whether each run starts in a new copy of the working directory."""
    changes: frozenset[CodeChange] = frozenset()
    """Lines of the program that are replaced, in memory."""

    @classmethod
    def fix(cls, *factors: str) -> Intervention:
        """Hold factors still."""
        return cls(frozenset((name, Action.FIXED) for name in factors))

    @classmethod
    def stir(cls, *factors: str) -> Intervention:
        """Stir factors."""
        return cls(frozenset((name, Action.STIRRED) for name in factors))

    def also(self, other: Intervention) -> Intervention:
        """Both; what one of them holds still is not stirred."""
        fixed = {name for name, action in self.factors | other.factors if action is Action.FIXED}
        factors = {(name, action) for name, action in self.factors | other.factors if name not in fixed}
        return Intervention(
            frozenset(factors | {(name, Action.FIXED) for name in fixed}),
            self.sources | other.sources,
            self.fresh_copy or other.fresh_copy,
            self.changes | other.changes,
        )

    def without(self, other: Intervention) -> Intervention:
        """This one, less what the other does."""
        return Intervention(
            self.factors - other.factors,
            self.sources - other.sources,
            self.fresh_copy and not other.fresh_copy,
            self.changes - other.changes,
        )

    @property
    def in_order(self) -> tuple[FixedSource, ...]:
        """The sources, by file and line."""
        return tuple(sorted(self.sources, key=lambda source: (source.file, source.line, source.source)))

    @property
    def fixes_entropy(self) -> bool:
        """Whether random bytes of the operating system are held still, and with them the names of temporary files."""
        return (_ENTROPY, Action.FIXED) in self.factors or any(source.source == _ENTROPY for source in self.sources)

    @property
    def name(self) -> str:
        """What it is done to."""
        return " and ".join(self._names) or "nothing"

    @property
    def title(self) -> str:
        """What it is done to, in a few words."""
        more = len(self._names) - _MOST_NAMES
        shown = self._names if more < 2 else [*self._names[:_MOST_NAMES], f"{more} more"]
        return " and ".join(shown) or "nothing"

    @property
    def _names(self) -> list[str]:
        names = [name for name, _ in sorted(self.factors)]
        names += [f"{source.source} at {_place(source)}" for source in self.in_order]
        names += ["fresh copy of the working directory"] * self.fresh_copy
        return names + [f"line {place}" for place in self._changed_places]

    @property
    def ordered_changes(self) -> tuple[CodeChange, ...]:
        """The changes, by file and line."""
        return tuple(sorted(self.changes, key=lambda change: (change.file, change.changes[0].line)))

    @property
    def _changed_places(self) -> list[str]:
        return [f"{PurePath(one.file).name}:{one.changes[0].line}" for one in self.ordered_changes]

    @property
    def action(self) -> str:
        """`stirred` if it only stirs, else `fixed`."""
        actions = {action for _, action in self.factors}
        return (
            "stirred"
            if actions == {Action.STIRRED} and not (self.sources or self.fresh_copy or self.changes)
            else "fixed"
        )

    @property
    def phrase(self) -> str:
        """What was done, as a phrase that goes on with "with"."""
        phrases = []
        for name, action in sorted(self.factors):
            done = FACTORS[name].fixed if action is Action.FIXED else FACTORS[name].stirred
            phrases.append(f"{name} {action} ({done})")
        phrases += [f"{source.source} held still at {_place(source)}" for source in self.in_order]
        if self.fresh_copy:
            phrases.append("a fresh copy of the working directory for each run")
        phrases += [f"line {place} changed" for place in self._changed_places]
        return " and ".join(phrases) or "nothing changed"


def _place(source: FixedSource) -> str:
    return f"{PurePath(source.file).name}:{source.line}"

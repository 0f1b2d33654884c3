"""What is to be noted and what is to be fixed, as it travels to the processes of the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from determinism.probes.code_change import CodeChange

PROBES_VARIABLE = "DETERMINISM_PROBES"
"""Environment variable with the request, as JSON."""


@dataclass(frozen=True)
class FixedSource:
    """A source that gets a fixed value at one line."""

    file: str
    line: int
    source: str


@dataclass(frozen=True)
class ProbeRequest:
    """A request to probe a program."""

    notes: Path | None = None
    """Folder, which exists, for the notes of each process; None to take no notes."""
    fixed: tuple[FixedSource, ...] = ()
    """Sources that get a fixed value where they are used at these lines."""
    fixed_sources: tuple[str, ...] = ()
    """Sources that get a fixed value wherever the user's code uses them."""
    changes: tuple[CodeChange, ...] = ()
    """Changes of the user's modules. With nothing noted and nothing fixed, their code is otherwise compiled as it stands."""
    copied: tuple[str, str] | None = None
    """The copy that the program runs in, and the folder that it is a copy of; sites are told as in the latter."""

    @property
    def probes(self) -> bool:
        """Whether code is to be rewritten, so that sources can be noted or fixed."""
        return self.notes is not None or bool(self.fixed or self.fixed_sources)

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries the request."""
        document = {
            "notes": None if self.notes is None else str(self.notes.absolute()),
            "fixed": [[one.file, one.line, one.source] for one in self.fixed],
            "fixed_sources": list(self.fixed_sources),
            "changes": [one.to_document() for one in self.changes],
            "copied": None if self.copied is None else list(self.copied),
        }
        return {PROBES_VARIABLE: json.dumps(document)}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ProbeRequest | None:
        """The request that an environment carries; None if it carries none."""
        text = environ.get(PROBES_VARIABLE)
        if text is None:
            return None
        document = json.loads(text)
        copied = document.get("copied")
        return cls(
            notes=None if document["notes"] is None else Path(document["notes"]),
            fixed=tuple(FixedSource(*one) for one in document["fixed"]),
            fixed_sources=tuple(document["fixed_sources"]),
            changes=tuple(CodeChange.from_document(one) for one in document["changes"]),
            copied=None if copied is None else (copied[0], copied[1]),
        )

"""The specification of what one run of a program records or does, and its JSON form.

The command line creates a `RunSpec`, the launcher completes it and puts it into the environment of the program, and our
code in each process of the program reads it there. A recorder gets it unchanged, so an option for a recorder is a field
here, a line in `cli/options.py`, and the recorder's use of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from determinism.types import PrecisionName

NOTES_SUFFIX = ".jsonl"
"""Suffix of the files in which probes note what the program took from outside."""
FIRST_NOTED = 64
"""How many uses of a source at one place are all noted; later ones are noted if their number is a power of two."""
PROCESS_VARIABLE = "DETERMINISM_PROCESS"
"""Environment variable through which a recorded process passes its key to its children."""
RUN_VARIABLE = "DETERMINISM_RUN"
"""Environment variable with the specification, as JSON. `launch/notes.py` repeats the name for other interpreters."""

EARLIER_RUNS_VARIABLE = "DETERMINISM_EARLIER_RUNS"
"""Environment variable with start and end of each earlier run: nanoseconds since 1970, as `begin:end`, comma-separated.

Separate from the rest: every Python process of the program reads it at startup and must not import `json` for it.
"""

RECORDER_VARIABLE = "DETERMINISM_RECORDER"
"""Environment variable that chooses the recorder for the ops of PyTorch: `native` or `python`.

Without it, the native recorder is used if it has been tested here and exists or can be built.
"""


def recorder_choice(environ: Mapping[str, str]) -> str:
    """Return the recorder that an environment requests; empty if it requests none."""
    return environ.get(RECORDER_VARIABLE) or ""


FIRST_RUN = "-"
"""Value of `EARLIER_RUNS_VARIABLE` in the first run of a check, in which only writes are noted."""


@dataclass(frozen=True)
class EnablingRequest:
    """The arguments of `determinism.enable`."""

    seed: int | None = None
    warn_only: bool = False
    threads: int | None = None
    precision: PrecisionName | None = None
    patch: bool = False
    """Whether to replace ops without a deterministic implementation; see `determinism.patch`."""


@dataclass(frozen=True)
class FactorRequest:
    """The factors of one run of an experiment."""

    actions: Mapping[str, str]
    """Action for each factor."""
    number: int = 1
    """Number of the run, from 1; it alone determines how factors are perturbed."""

    def is_fixed(self, name: str) -> bool:
        """Whether a factor is fixed."""
        return self.actions.get(name) == "fixed"

    def is_perturbed(self, name: str) -> bool:
        """Whether a factor is perturbed."""
        return self.actions.get(name) == "perturbed"


@dataclass(frozen=True)
class ChangedLines:
    """Lines before and after a change, with their indentation and without the last line break."""

    line: int
    end_line: int
    before: str
    after: str


@dataclass(frozen=True)
class CodeChange:
    """A change to one file of a program; the file itself is not modified."""

    file: str
    changes: tuple[ChangedLines, ...]
    imports: tuple[str, ...] = ()
    """Lines to add to the imports unless they are already there."""

    @property
    def code(self) -> str:
        """The changed lines after the change."""
        return "\n".join(change.after for change in self.changes)


@dataclass(frozen=True)
class FixedSource:
    """A source to be fixed to a constant value at one line."""

    file: str
    line: int
    source: str


@dataclass(frozen=True)
class ProbeRequest:
    """A request to note or fix what the program's own code takes from outside."""

    notes: Path | None = None
    """Existing folder for the notes of each process; None to take no notes."""
    fixed: tuple[FixedSource, ...] = ()
    """Sources to be fixed at these lines."""
    fixed_sources: tuple[str, ...] = ()
    """Sources to be fixed wherever the user's code uses them."""
    changes: tuple[CodeChange, ...] = ()
    """Changes to the user's modules. If nothing is noted or fixed, code is compiled unmodified apart from these."""

    @property
    def probes(self) -> bool:
        """Whether code must be rewritten so that sources can be noted or fixed."""
        return self.notes is not None or bool(self.fixed or self.fixed_sources)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a request that was written with `dataclasses.asdict` as JSON."""
        return cls(
            notes=None if document["notes"] is None else Path(document["notes"]),
            fixed=tuple(FixedSource(**source) for source in document["fixed"]),
            fixed_sources=tuple(document["fixed_sources"]),
            changes=tuple(
                CodeChange(
                    change["file"],
                    tuple(ChangedLines(**lines) for lines in change["changes"]),
                    tuple(change["imports"]),
                )
                for change in document["changes"]
            ),
        )


STATE_EVERY = 8
"""Default number of steps between the parameters, buffers and optimizer states in a ledger.

A step that differs shows in its loss and gradients. Parameters, buffers and optimizer state are three quarters of the
bytes to read after a step with AdamW, so this keeps the cost of a ledger below 1 % of the time of a step.
"""


@dataclass(frozen=True)
class RunSpec:
    """The specification of what one run records or does."""

    trace_folder: Path | None = None
    """The trace to make; None in a run that is not recorded."""
    level: str = "op"
    """How much to record; a `Level`."""
    steps: int | None = None
    """Recording and the program end after this many steps."""
    first_step: int = 0
    """Number of the program's first step: in a resumed run, the number of steps made before."""
    window: int | None = None
    """The step from which ops are recorded; before it, only a ledger of the steps is recorded. PyTorch only."""
    state_every: int = 1
    """Steps between digests of parameters, buffers and optimizer state at level `step` or before a window; PyTorch."""
    max_disk: int | None = None
    """Maximum size of a process's trace, in bytes."""
    keeps_newest: bool = False
    """Whether the oldest records are removed at that limit; if not, recording ends there."""
    paranoid: bool = False
    """Whether to digest every input of every op."""
    invariants: bool = False
    """Whether to mark what must agree within the run; only for PyTorch, while ops are recorded."""
    values: int | None = None
    """How many elements to keep of each output tensor of an op."""
    capture: dict[str, Any] | None = None
    """The record that a confirming run captures."""
    rows: dict[str, Any] | None = None
    """Inspect rows of batches: `batch` is the number of samples in one, `settings` the names of settings to try."""
    generators: dict[str, Any] | None = None
    """Save the states of the global generators as they were when the program saved after the last step, or after `steps`, or else at
    the end of that step; or restore saved ones: `from`, `which`, `moment`, `after`; or `watch` the states that the program sets."""
    earlier_runs: Sequence[tuple[int, int]] | None = None
    """Start and end, in nanoseconds since 1970, of runs whose changed files are leftovers; None to watch no files."""
    copied: tuple[str, str] | None = None
    """The copy in which the program runs, and the original folder, by which sites are reported."""
    enabling: EnablingRequest | None = None
    """How to make the program deterministic."""
    factors: FactorRequest | None = None
    """The factors that an experiment fixes or perturbs from outside the program."""
    probes: ProbeRequest | None = None
    """What to note, fix or change in the program's own code."""

    def to_document(self) -> dict[str, Any]:
        """Return the specification for JSON: one object for each requested part, without the earlier runs."""
        recording = asdict(self)
        parts = {name: recording.pop(name) for name in ("copied", "enabling", "factors", "probes")}
        del recording["earlier_runs"]
        document = {name: part for name, part in parts.items() if part is not None}
        if self.probes is not None and self.probes.notes is not None:
            document["probes"]["notes"] = str(self.probes.notes.absolute())
        if self.trace_folder is not None:
            document["recording"] = {**recording, "trace_folder": str(self.trace_folder.absolute())}
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the result of `to_document`.

        Raises:
            TypeError: It has an unknown key, perhaps from another version of the package.
            KeyError: It lacks a key.
        """
        fields = dict(document.get("recording", {}))
        if "trace_folder" in fields:
            fields["trace_folder"] = Path(fields["trace_folder"])
        copied, enabling, factors, probes = map(document.get, ("copied", "enabling", "factors", "probes"))
        return cls(
            **fields,
            copied=None if copied is None else (copied[0], copied[1]),
            enabling=None if enabling is None else EnablingRequest(**enabling),
            factors=None if factors is None else FactorRequest(**factors),
            probes=None if probes is None else ProbeRequest.from_document(probes),
        )

    def added_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Add the specification to an environment.

        Parts that this one lacks are kept from the environment, so that one command can start another:
        `determinism check -- determinism run -- python train.py`.
        """
        document = {**json.loads(environ.get(RUN_VARIABLE, "{}")), **self.to_document()}
        result = {**environ, RUN_VARIABLE: json.dumps(document)}
        if self.trace_folder is not None:
            # Set in every run, even if empty, so that the program finds the same variables in each.
            result[EARLIER_RUNS_VARIABLE] = self._watched()
        return result

    def _watched(self) -> str:
        if self.earlier_runs is None:
            return ""
        return ",".join(f"{begin}:{end}" for begin, end in self.earlier_runs) or FIRST_RUN

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the specification in an environment, without the earlier runs; an empty one if there is none."""
        return cls.from_document(json.loads(environ.get(RUN_VARIABLE, "{}")))

"""What one run of a program is asked to record or to do, and its one JSON form.

The command line makes a `RunSpec`, the launcher completes it and puts it into the environment of the program, and what runs
inside each process of the program reads it there. A recorder gets it as it is, so an option that reaches a recorder is a field
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
"""What the names of files end with in which probes note what the program took from outside."""
FIRST_NOTED = 64
"""Uses of a source at one place that are all noted; of later ones those whose number is a power of two."""
PROCESS_VARIABLE = "DETERMINISM_PROCESS"
"""Environment variable through which a recorded process tells its children its key."""
RUN_VARIABLE = "DETERMINISM_RUN"
"""Environment variable with the specification, as JSON. `launch/notes.py` has the name too, for interpreters that cannot load this."""

EARLIER_RUNS_VARIABLE = "DETERMINISM_EARLIER_RUNS"
"""Environment variable with the begin and end of each earlier run: nanoseconds since 1970, as `begin:end`, with commas.

Apart from the rest: every Python process of the program reads it when it starts, and that must not import `json`.
"""

RECORDER_VARIABLE = "DETERMINISM_RECORDER"
"""Environment variable that chooses what records the ops of PyTorch: `native` or `python`.

Without it the native recorder is used where it has been tested and is there or can be built.
"""


def recorder_choice(environ: Mapping[str, str]) -> str:
    """The recorder that an environment asks for; empty if it leaves the choice."""
    return environ.get(RECORDER_VARIABLE) or ""


FIRST_RUN = "-"
"""Value of that variable in the first run of a check, which has no earlier ones: only writes are noted."""


@dataclass(frozen=True)
class EnablingRequest:
    """The arguments of `determinism.enable`."""

    seed: int | None = None
    warn_only: bool = False
    threads: int | None = None
    precision: PrecisionName | None = None
    patch: bool = False
    """Whether ops without a deterministic implementation are replaced; see `determinism.patch`."""


@dataclass(frozen=True)
class FactorRequest:
    """The factors of one run of an experiment."""

    actions: Mapping[str, str]
    """Per factor, what is done with it."""
    number: int = 1
    """Which run this is, from 1; what is perturbed depends on it and on nothing else."""

    def is_fixed(self, name: str) -> bool:
        """Whether a factor is fixed."""
        return self.actions.get(name) == "fixed"

    def is_perturbed(self, name: str) -> bool:
        """Whether a factor is perturbed."""
        return self.actions.get(name) == "perturbed"


@dataclass(frozen=True)
class ChangedLines:
    """Lines as they are and as they are to be, with their indentation and without the last line break."""

    line: int
    end_line: int
    before: str
    after: str


@dataclass(frozen=True)
class CodeChange:
    """A change of one file of a program; the file itself stays as it is."""

    file: str
    changes: tuple[ChangedLines, ...]
    imports: tuple[str, ...] = ()
    """Lines that have to stand among the imports, where they do not yet."""

    @property
    def code(self) -> str:
        """The changed lines as they are to be."""
        return "\n".join(change.after for change in self.changes)


@dataclass(frozen=True)
class FixedSource:
    """A source that gets a fixed value at one line."""

    file: str
    line: int
    source: str


@dataclass(frozen=True)
class ProbeRequest:
    """A request to note or to fix what the program's own code takes from outside."""

    notes: Path | None = None
    """Folder, which exists, for the notes of each process; None to take no notes."""
    fixed: tuple[FixedSource, ...] = ()
    """Sources that get a fixed value where they are used at these lines."""
    fixed_sources: tuple[str, ...] = ()
    """Sources that get a fixed value wherever the user's code uses them."""
    changes: tuple[CodeChange, ...] = ()
    """Changes of the user's modules. With nothing noted and nothing fixed, their code is otherwise compiled unmodified."""

    @property
    def probes(self) -> bool:
        """Whether code is to be rewritten, so that sources can be noted or fixed."""
        return self.notes is not None or bool(self.fixed or self.fixed_sources)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of a request."""
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
"""Every how many steps a ledger has parameters, buffers and optimizer state, unless something else is asked for.

A step that differs shows in its loss and its gradients. What is held is three quarters of what there is to read after a step with
AdamW, so that this is what keeps a ledger below 1 % of the time of a step.
"""


@dataclass(frozen=True)
class RunSpec:
    """What one run is asked to record or to do."""

    trace_folder: Path | None = None
    """The trace to make; None in a run that is not recorded."""
    level: str = "op"
    """How much is recorded; a `Level`."""
    steps: int | None = None
    """Recording and the program end when this many steps are done."""
    first_step: int = 0
    """The number of the first step that the program makes: of one that is resumed, how many were made before."""
    window: int | None = None
    """The step from which ops are recorded; before it, and only of PyTorch, the program runs with a ledger of its steps alone."""
    state_every: int = 1
    """At level `step`, and before a window: every how many steps parameters, buffers and optimizer state are digested; of PyTorch."""
    max_disk: int | None = None
    """Bytes that the trace of a process never grows past."""
    keeps_newest: bool = False
    """Whether the oldest records are removed at that limit; else recording ends there."""
    paranoid: bool = False
    """Digest every input of every op."""
    invariants: bool = False
    """Mark what must agree within the run; of PyTorch, and where ops are recorded."""
    values: int | None = None
    """How many elements are kept of each tensor that an op gave."""
    capture: dict[str, Any] | None = None
    """Which record a confirming run looks at closely."""
    rows: dict[str, Any] | None = None
    """Look at the rows of batches: `batch`, how many samples one has, and `settings`, names of what is set for a trial."""
    generators: dict[str, Any] | None = None
    """Keep the states of the global generators as they were when the program saved after the last step, or after so many `steps`, or
    else at the end of that step; or put kept ones back: `from`, `which`, `moment`, `after`; or `watch` which states the program puts
    them into."""
    earlier_runs: Sequence[tuple[int, int]] | None = None
    """Begin and end of runs whose changed files are leftovers, in nanoseconds since 1970; None if files are not watched."""
    copied: tuple[str, str] | None = None
    """The copy that the program runs in, and the folder that it is a copy of; sites are reported as in the latter."""
    enabling: EnablingRequest | None = None
    """How the program is made deterministic."""
    factors: FactorRequest | None = None
    """What an experiment does with factors from outside the program."""
    probes: ProbeRequest | None = None
    """What is noted or changed in the program's own code."""

    def to_document(self) -> dict[str, Any]:
        """The specification as JSON has it: one object per part that is asked for, without the earlier runs."""
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
        """Read what `to_document` gave.

        Raises:
            TypeError: It has a key that is not known, as of another version of the package.
            KeyError: It lacks one.
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

        Parts that this one leaves out stay as the environment has them, so one command can start another:
        `determinism check -- determinism run -- python train.py`.
        """
        document = {**json.loads(environ.get(RUN_VARIABLE, "{}")), **self.to_document()}
        result = {**environ, RUN_VARIABLE: json.dumps(document)}
        if self.trace_folder is not None:
            # There in every run, whatever it says, so that the program finds the same variables in each.
            result[EARLIER_RUNS_VARIABLE] = self._watched()
        return result

    def _watched(self) -> str:
        if self.earlier_runs is None:
            return ""
        return ",".join(f"{begin}:{end}" for begin, end in self.earlier_runs) or FIRST_RUN

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """The specification that an environment carries, without the earlier runs; an empty one if it carries none."""
        return cls.from_document(json.loads(environ.get(RUN_VARIABLE, "{}")))

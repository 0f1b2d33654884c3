"""What a run is asked to record or to enable, as it travels to the processes of the program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from determinism.launch.notes import RECORDING_VARIABLE
from determinism.launch.reading import EARLIER_RUNS_VARIABLE, FIRST_RUN

# What is to be made deterministic, as it travels from `determinism run` to the processes of the program.

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


# What is to be recorded, as it travels from the command to the processes of the program.


@dataclass(frozen=True)
class RecordingConfiguration:
    """A request to record."""

    trace_folder: Path
    level: str = "op"
    steps: int | None = None
    """Recording and the program end when this many steps are done."""
    max_disk: int | None = None
    """Bytes that the trace never grows past."""
    paranoid: bool = False
    """Digest every input."""
    capture: dict[str, Any] | None = None
    """Which record a confirming run captures."""
    copied: tuple[str, str] | None = None
    """The copy that the program runs in, and the folder that it is a copy of."""
    earlier_runs: Sequence[tuple[int, int]] | None = None
    """Begin and end of runs whose changed files are leftovers, in nanoseconds since 1970; None if files are not watched."""
    rows: dict[str, Any] | None = None
    """How many samples a batch has whose rows are looked at, and what is set for a trial."""
    generators: dict[str, Any] | None = None
    """Whether the states of generators are kept, or put back from another trace."""
    values: int | None = None
    """How many elements of each tensor that an op gave are kept."""

    def to_environment(self) -> dict[str, str]:
        """The environment variables that carry the request."""
        document = {**asdict(self), "trace_folder": str(self.trace_folder.absolute())}
        # Apart from the rest: whoever looks at this does without reading JSON.
        del document["earlier_runs"]
        return {RECORDING_VARIABLE: json.dumps(document), EARLIER_RUNS_VARIABLE: self._watched()}

    def _watched(self) -> str:
        if self.earlier_runs is None:
            return ""
        return ",".join(f"{begin}:{end}" for begin, end in self.earlier_runs) or FIRST_RUN

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RecordingConfiguration | None:
        """The request that an environment carries, without the earlier runs; None if it carries none."""
        text = environ.get(RECORDING_VARIABLE)
        if text is None:
            return None
        document = json.loads(text)
        copied = document.get("copied")
        return cls(
            **{
                **document,
                "trace_folder": Path(document["trace_folder"]),
                "copied": None if copied is None else tuple(copied),
            }
        )

"""Records TensorFlow programs twice within this process, and compares the recordings."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import keras

import determinism
from determinism.comparison.records import Entry, entry_of
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_runs
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.types import Verdict

PROGRAMS = Path(__file__).parent / "e2e" / "programs" / "tensorflow"


class Recorded(NamedTuple):
    """The result of one recording."""

    trace: Trace
    output: str
    """The output of the program."""

    @property
    def entries(self) -> list[Entry]:
        """All records of the main process."""
        process = self.trace.processes[0]
        return [entry_of(process, chunk, row) for chunk in process.chunks() for row in range(chunk.rows)]

    @property
    def blind_spots(self) -> list[dict[str, Any]]:
        """The blind spots of the main process."""
        return list(self.trace.processes[0].description["blind_spots"])

    def ops(self, name: str) -> list[Entry]:
        """The records of one op."""
        return [one for one in self.entries if one.op == name]

    def lines(self, name: str) -> list[int]:
        """The lines of the program that ran an op."""
        process = self.trace.processes[0]
        places = [(chunk, row) for chunk in process.chunks() for row in range(chunk.rows)]
        found = [(chunk, row) for chunk, row in places if entry_of(process, chunk, row).op == name]
        return [process.names.stack(int(chunk.columns["stack"][row]))[0].line for chunk, row in found]


def recorded(folder: Path, function: Callable[[], Any]) -> Recorded:
    """Record a function."""
    path = folder / f"trace-{len(list(folder.iterdir()))}"
    keras.backend.clear_session()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), determinism.record(path) as session:
        session.returned(function())
    return Recorded(open_trace(path), output.getvalue())


def program(name: str, *arguments: str) -> Callable[[], None]:
    """Return a program in `e2e/programs/tensorflow` as a function."""

    def run() -> None:
        given, sys.argv = sys.argv, [name, *arguments]
        try:
            runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
        finally:
            sys.argv = given

    return run


def printed(function: Callable[[], Any]) -> str:
    """Return the output of a program that is not recorded."""
    keras.backend.clear_session()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        function()
    return output.getvalue()


def compared(folder: Path, function: Callable[[], Any], runs: int = 2) -> Comparison:
    """Record a function several times, and compare the recordings."""
    return compare_runs([recorded(folder, function).trace for _ in range(runs)])


def compared_until_different(folder: Path, function: Callable[[], Any], at_most: int = 60) -> Comparison:
    """Record a function that varies with some probability until a recording differs from the first, and compare the two."""
    traces: list[Trace] = []
    while len(traces) < at_most:
        traces.append(recorded(folder, function).trace)  # on one line, since line numbers are compared as well
        comparison = compare_runs([traces[0], traces[-1]])
        if comparison.verdict is not Verdict.SAME:
            break
    return comparison


def gives_different_results(function: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Whether a function returns a different result before time is up; on a busy machine threads seldom race."""
    first, until = function(), monotonic() + seconds
    while monotonic() < until:
        if function() != first:
            return True
    return False

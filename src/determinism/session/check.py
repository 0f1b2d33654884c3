"""Compare runs: of a function that is called repeatedly from the same state, and stored ones."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

from determinism.comparison.processes import ComparePairs, compare_none
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_opened, compare_runs
from determinism.diagnose.experiments import likely_causes_left
from determinism.diagnose.hypotheses import likely_hypotheses
from determinism.errors import StateError, UsageError
from determinism.frameworks.registry import RECORDERS
from determinism.session.record import record
from determinism.session.snapshot import Snapshot, imported_names
from determinism.trace.opening import open_trace, trace_folder


def check(
    function: Callable[..., Any], /, *args: Any, runs: int = 2, strict: bool = False, **kwargs: Any
) -> Comparison:
    """Call a function twice or more in this process and compare every op it runs.

    Before each call, and after the last, the states of the random generators and everything that the function can reach
    through its arguments, its closure and the globals that it names are restored. The function's result counts as read.

    Args:
        function: The function to check.
        *args: Its arguments.
        runs: How often to call it.
        strict: Whether differences that nothing reads count too.
        **kwargs: Its keyword arguments.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`.

    Raises:
        StateError: An object that the function can reach cannot be copied.
        UsageError: No supported framework is imported, fewer than two runs are requested, or `function` is not callable.

    Example:
        >>> import torch
        >>> found = determinism.check(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> print(found.verdict)
        same
    """
    if not callable(function):
        raise UsageError(
            "not-callable",
            f"check() expects a function, got {function!r}, so nothing was run. Give the function and its "
            "arguments, or check a whole program with: determinism check -- python train.py",
        )
    if runs < 2:
        raise UsageError("too-few-runs", f"Comparing needs two or more runs; got runs={runs}.")
    snapshot = Snapshot.take(function, args, kwargs)
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        traces = [Path(folder) / f"run-{number + 1}" for number in range(runs)]
        for trace in traces:
            _call(function, args, kwargs, snapshot, trace)
        comparison = compare_runs([open_trace(trace) for trace in traces], strict=strict)
    name = getattr(function, "__qualname__", repr(function))
    return replace(comparison, runs=tuple(replace(run, command=[name], trace=None) for run in comparison.runs))


def compare(*traces: str | os.PathLike[str], strict: bool = False, allow_failure: bool = False) -> Comparison:
    """Compare two or more traces on disk.

    Nothing is run. A cause is *likely* if the records and the program's files show it; files are read only if their lines
    have not changed since the run.

    Args:
        *traces: Folders that `determinism record` or `determinism.record` wrote, or URLs of such folders for fsspec.
        strict: Whether dead differences make runs different too.
        allow_failure: Whether to report equal runs as the same even if they failed.

    Raises:
        UsageError: There are fewer than two traces, or they were recorded at different levels.
        TraceError: A trace cannot be read.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`.

    Example:
        >>> import torch
        >>> for run in ("run-1", "run-2"):
        ...     with determinism.record(run):
        ...         total = torch.rand(4).sum().item()
        >>> found = determinism.compare("run-1", "run-2")
        >>> print(found.verdict, found.first_divergence.kind, found.first_divergence.op)
        different rng aten::rand
    """
    return compare_over(compare_none, *traces, strict=strict, allow_failure=allow_failure)


def compare_over(
    compare_pairs: ComparePairs, *traces: str | os.PathLike[str], strict: bool = False, allow_failure: bool = False
) -> Comparison:
    """Compare traces as `compare` does, but compare their processes with `compare_pairs`.

    Args:
        compare_pairs: Compares pairs of processes; see `comparison.executors`.
        *traces: Folders of the traces.
        strict: Whether dead differences make runs different too.
        allow_failure: Whether to report equal runs as the same even if they failed.

    Raises:
        DeterminismError: A trace cannot be read, or `compare_pairs` fails.
    """
    opened = [open_trace(trace_folder(trace)) for trace in traces]
    comparison = compare_opened(opened, strict=strict, allow_failure=allow_failure, compare_pairs=compare_pairs)
    causes = tuple(likely_causes_left(likely_hypotheses(comparison, opened)))
    diagnosis = replace(comparison.diagnosis, causes=causes, limit=_how_to_search(comparison))
    return replace(comparison, diagnosis=diagnosis)


def _how_to_search(comparison: Comparison) -> str | None:
    """Say that stored runs are only compared, and which command searches for the cause; None without a difference."""
    commands = {tuple(run.command) for run in comparison.runs}
    if comparison.first_divergence is None or commands == {()}:
        return None
    text = "No cause was searched for: comparing stored runs starts no program."
    if len(commands) > 1:
        return text
    return f"{text} To search:\n{shlex.join(['determinism', 'check', '--', *commands.pop()])}"


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], snapshot: Snapshot, trace: Path
) -> None:
    try:
        with record(trace) as session:
            session.returned(function(*args, **kwargs))
    finally:
        snapshot.restore()


# Shared by tests and notebook cells, which are run several times in this process.


class StartingState:
    """The state from which runs start: everything they can reach, the environment variables, and the current folder."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Copy the state of the process.

        Args:
            snapshot: Snapshot of everything that the runs can reach.
        """
        self._snapshot = snapshot
        self._variables = dict(os.environ)
        self._folder = os.getcwd()

    def restore(self) -> None:
        """Restore everything.

        Raises:
            StateError: A change cannot be undone.
        """
        self._snapshot.restore()
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._variables.items() if os.environ.get(name) != value})
        try:
            os.chdir(self._folder)
        except OSError as error:
            finding = f"The current folder cannot be restored: {error}"
            refused = StateError(
                "state-unrestored", f"{finding}. A second run would not start from the same state as the first."
            )
            refused.finding = finding
            raise refused from error


def import_frameworks_of(code: CodeType | None) -> None:
    """Import the frameworks that code imports, since its first run could not be recorded before that.

    Args:
        code: Code of a function or a cell; None if there is none.
    """
    for name in imported_names(code) if code is not None else ():
        framework = name.partition(".")[0]
        if framework in RECORDERS and framework not in sys.modules:
            import_module(framework)


def compare_runs_of(name: Sequence[str], traces: Sequence[Path]) -> Comparison:
    """Compare recorded runs of the same code, and name likely causes from the records.

    Args:
        name: The command or name of the code.
        traces: The traces, which may be removed afterwards.

    Raises:
        TraceError: A trace cannot be read.
    """
    opened = [open_trace(trace) for trace in traces]
    comparison = compare_runs(opened)
    causes = tuple(likely_causes_left(likely_hypotheses(comparison, opened)))
    runs = tuple(replace(run, command=list(name), trace=None) for run in comparison.runs)
    return replace(comparison, runs=runs, diagnosis=replace(comparison.diagnosis, causes=causes))

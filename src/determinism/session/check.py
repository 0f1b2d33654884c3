"""Checks a function: calls it again and again from the same state and compares what it computed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_runs
from determinism.errors import UsageError
from determinism.session.record import record
from determinism.session.snapshot import Snapshot
from determinism.trace.opening import open_trace


def check(
    function: Callable[..., Any], /, *args: Any, runs: int = 2, strict: bool = False, **kwargs: Any
) -> Comparison:
    """Call a function twice or more in this process and compare every op it runs.

    Before each call, the states of the random generators and everything that the function can reach through its
    arguments, its closure and the globals that it names is put back to what it was; after the last one as well. What
    the function returns counts as read.

    Args:
        function: What to check.
        *args: Its arguments.
        runs: How often it is called.
        strict: Also count differences that nothing reads.
        **kwargs: Its keyword arguments.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`.

    Raises:
        StateError: Something that the function can reach cannot be copied.
        UsageError: No supported framework is imported, fewer than two runs are asked for, or it is no function.

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
        raise UsageError("too-few-runs", f"Comparing needs two runs or more; runs={runs} was given.")
    snapshot = Snapshot.take(function, args, kwargs)
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        traces = [Path(folder) / f"run-{number + 1}" for number in range(runs)]
        for trace in traces:
            _call(function, args, kwargs, snapshot, trace)
        comparison = compare_runs([open_trace(trace) for trace in traces], strict=strict)
    name = getattr(function, "__qualname__", repr(function))
    return replace(comparison, runs=tuple(replace(run, command=[name], trace=None) for run in comparison.runs))


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], snapshot: Snapshot, trace: Path
) -> None:
    try:
        with record(trace) as session:
            session.returned(function(*args, **kwargs))
    finally:
        snapshot.restore()

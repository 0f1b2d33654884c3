"""What tests and cells of notebooks share that run several times in this process: where runs start from, and how they are compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import CodeType

from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_runs
from determinism.diagnose.investigation import likely_causes_left
from determinism.diagnose.likely import likely_hypotheses
from determinism.errors import StateError
from determinism.frameworks.registry import RECORDERS
from determinism.session.snapshot import Snapshot, imported_names
from determinism.trace.opening import open_trace


class StartingState:
    """What runs start from: what they can reach, the environment variables, and the current folder."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Copy what belongs to the process.

        Args:
            snapshot: Of what the runs can reach.
        """
        self._snapshot = snapshot
        self._variables = dict(os.environ)
        self._folder = os.getcwd()

    def restore(self) -> None:
        """Put everything back.

        Raises:
            StateError: Something was changed in a way that cannot be undone.
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
                "state-unrestored", f"{finding}. A second run would not start where the first one did."
            )
            refused.finding = finding
            raise refused from error


def import_frameworks_of(code: CodeType | None) -> None:
    """Import the frameworks that a piece of code imports: in its first run nothing could be recorded before that.

    Args:
        code: Of a function or a cell; None if there is none.
    """
    for name in imported_names(code) if code is not None else ():
        framework = name.partition(".")[0]
        if framework in RECORDERS and framework not in sys.modules:
            import_module(framework)


def compare_runs_of(name: Sequence[str], traces: Sequence[Path]) -> Comparison:
    """Compare recorded runs of one piece of code, and name causes that are likely by what was recorded.

    Args:
        name: What was run, as a command or a name.
        traces: What was recorded, which may be removed afterwards.

    Raises:
        TraceError: A trace cannot be read.
    """
    opened = [open_trace(trace) for trace in traces]
    comparison = compare_runs(opened)
    causes = tuple(likely_causes_left(likely_hypotheses(comparison, opened)))
    runs = tuple(replace(run, command=list(name), trace=None) for run in comparison.runs)
    return replace(comparison, runs=runs, diagnosis=replace(comparison.diagnosis, causes=causes))

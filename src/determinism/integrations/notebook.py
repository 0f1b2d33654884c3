"""`%load_ext determinism` adds `%%determinism` to IPython and Jupyter: a cell runs twice from the same state and is compared.

The last run counts: its output is shown, and its changes stay. Before each run but the first, everything that the cell can
reach is put back.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

from determinism.comparison.result import Comparison, Recorded, Trouble
from determinism.errors import DeterminismError, StateError, UsageError
from determinism.run_spec import RUN_VARIABLE, RunSpec
from determinism.session.check import StartingState, compare_runs_of, import_frameworks_of
from determinism.session.record import is_recording, recording
from determinism.session.snapshot import Snapshot
from determinism.source_files import cell_name, is_cell
from determinism.types import Level, Verdict

MAGIC = "determinism"


def load_ipython_extension(shell: Any) -> None:
    """Add `%%determinism`; IPython calls this for `%load_ext determinism`."""
    # Not a function: its frame would be in the traceback of each cell that fails.
    shell.register_magic_function(partial(_magic, shell), magic_kind="cell", magic_name=MAGIC)


def unload_ipython_extension(shell: Any) -> None:
    """Remove `%%determinism`; IPython calls this for `%unload_ext determinism`."""
    shell.magics_manager.magics["cell"].pop(MAGIC, None)


def _magic(shell: Any, line: str, cell: str) -> None:
    __tracebackhide__ = True
    from IPython.core.error import UsageError as ShownWithoutTraceback

    try:
        options = _options(line)
        prepared = _Cell(shell, line, cell)
        found = _checked(prepared, options)
    except DeterminismError as error:
        raise ShownWithoutTraceback(f"{error} [{error.identifier}]") from None
    if options.output is not None:
        shell.user_ns[options.output] = found
    # A cell that was not compared, as the whole notebook is, has no runs.
    if options.fail and found.runs and found.verdict is not Verdict.SAME:
        raise ShownWithoutTraceback(f"%%{MAGIC} --fail: {str(found.report()).splitlines()[0]}")


# The options after `%%determinism`.


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise the error that the cell shows; argparse would end the kernel.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "cell-arguments", f"%%{MAGIC}: {message}. Write for example: %%{MAGIC} --runs 2 --level op --output found"
        )


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog=f"%%{MAGIC}", add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--runs", type=int, default=2)
    parser.add_argument("--level", choices=[level.value for level in Level], default=Level.OP.value)
    parser.add_argument("--steps", type=int)
    parser.add_argument("-o", "--output")
    parser.add_argument("--fail", action="store_true")
    try:
        words = shlex.split(line)
    except ValueError as error:
        parser.error(str(error))
    options = parser.parse_args(words)
    if options.runs < 2:
        parser.error(f"--runs {options.runs}: comparing needs two runs or more")
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps {options.steps}: give a number of at least 1, or leave it out for all")
    if options.output is not None and not options.output.isidentifier():
        parser.error(f"--output {options.output}: this is not a variable name")
    return options


# The cell, run as IPython runs it.


class _Cell:
    """The code of a cell, with its line numbers, and the shell in which it runs."""

    def __init__(self, shell: Any, line: str, cell: str) -> None:
        """Compile the cell as IPython does.

        Raises:
            UsageError: The cell cannot be run twice.
            SyntaxError: The cell is not valid Python.
        """
        if cell.lstrip().startswith("%%"):
            raise UsageError(
                "cell-not-repeatable",
                f"%%{MAGIC} cannot be followed by another cell magic, {cell.split()[0]}, whose code would not be visible to it. "
                "Leave out one of them. Nothing was run.",
            )
        self.shell = shell
        # In place of the first line, so that each line has the number that the notebook shows.
        source = f"#%%{MAGIC} {line}\n{cell}"
        transformed = shell.transform_cell(source)
        if shell.should_run_async(source, transformed_cell=transformed):
            raise UsageError(
                "cell-not-repeatable",
                "This cell awaits something at its top level, so it runs in an event loop together with other tasks, and cannot be run again from "
                "the same state. Put the code to check into its own cell. Nothing was run.",
            )
        self.name, number = _running_cell(shell)
        # Tracebacks and reports show the first line as it was written.
        file = shell.compile.cache(transformed.replace("#", "", 1), number, raw_code=source)
        tree = shell.transform_ast(shell.compile.ast_parse(transformed, file))
        shown = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        self.code: CodeType = compile(tree, file, "exec")
        self._shown = [compile(ast.Interactive([node]), file, "single") for node in shown]

    def functions(self) -> list[FunctionType]:
        """Functions with the code of the cell."""
        return [FunctionType(code, self.shell.user_ns) for code in (self.code, *self._shown)]

    def run(self) -> None:
        """Run the cell; its last expression is shown."""
        __tracebackhide__ = True
        for code in (self.code, *self._shown):
            exec(code, self.shell.user_ns)


def _running_cell(shell: Any) -> tuple[str, int]:
    """The name and number of the running cell; depending on its version, IPython counts before or after it runs a cell."""
    at = sys._getframe()
    while at.f_back is not None and not is_cell(at.f_code.co_filename):
        at = at.f_back
    number = re.search(r"\d+", cell_name(at.f_code.co_filename) or "")
    found = shell.execution_count if number is None else int(number[0])
    return f"In[{found}]", found


# Its runs.


def _checked(cell: _Cell, options: argparse.Namespace) -> Comparison:
    """Run a cell as often as requested, and show the comparison; once, without a verdict, if the whole notebook is recorded."""
    __tracebackhide__ = True
    if is_recording() or RUN_VARIABLE in os.environ:
        # `determinism check -- jupyter nbconvert` compares whole notebooks.
        cell.run()
        text = f"{cell.name} ran once and was not compared: the whole notebook is being recorded already."
        print(f"determinism: {text}")
        return Comparison(Verdict.INCONCLUSIVE, (), Recorded(), trouble=(Trouble("already-recording", text),))
    first, *others = cell.functions()
    for function in (first, *others):
        import_frameworks_of(function.__code__)
    start: StartingState | None = None
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        traces = [Path(folder) / f"run-{number + 1}" for number in range(options.runs)]
        for number, trace in enumerate(traces, start=1):
            try:
                if start is None:
                    start = StartingState(Snapshot.take(first, others, {}))
                else:
                    start.restore()
            except StateError as error:
                raise _state_error(error, number) from error
            try:
                with (
                    _hidden(number < options.runs),
                    recording(RunSpec(trace, level=Level(options.level), steps=options.steps)),
                ):
                    cell.run()
            except DeterminismError:
                raise
            except BaseException as error:
                if number > 1 and isinstance(error, Exception):
                    _show(
                        _CellReport(compare_runs_of([cell.name], traces[:number]), _failed(number, options.runs, error))
                    )
                raise
        found = compare_runs_of([cell.name], traces)
    _show(_CellReport(found))
    return found


_GLOBAL = re.compile(r"^globals\(\)\['(\w+)'\]")
"""A variable of the notebook, as a `StateError` names it."""


def _state_error(error: StateError, number: int) -> UsageError:
    what = (
        "Nothing was run"
        if number == 1
        else f"The cell ran {'once' if number == 2 else f'{number - 1} times'}, and nothing was compared"
    )
    finding = _GLOBAL.sub(r"\1", error.finding or error.message)
    return UsageError(
        "cell-state",
        f"{finding}, so run {max(number, 2)} of this cell would not start where run 1 did. "
        f"{what}. Make it in this cell, or check the whole notebook: determinism check -- jupyter nbconvert --to notebook --execute "
        "--output result.ipynb notebook.ipynb",
    )


def _failed(number: int, runs: int, error: Exception) -> str:
    before = "run 1" if number == 2 else f"runs 1 to {number - 1}"
    return f"Different: run {number} of {runs} failed with {type(error).__name__}, and {before} did not, from the same state."


@contextmanager
def _hidden(is_hidden: bool) -> Iterator[None]:
    """Hide the output of a run, unless it fails."""
    __tracebackhide__ = True
    if not is_hidden:
        yield
        return
    capture_output = import_module("IPython.utils.capture").capture_output
    before = _figures()
    output = None
    try:
        with capture_output() as output:
            yield
    except BaseException:
        if output is not None:
            output.show()
        raise
    _close_figures(before)


def _figures() -> set[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return set() if pyplot is None else set(pyplot.get_fignums())


def _close_figures(before: set[int]) -> None:
    """Close the figures of a run, which would be shown at the end of the cell with those of the last run."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in _figures() - before:
        assert pyplot is not None
        pyplot.close(number)


# The report of a cell.


class _CellReport:
    """A comparison, as a notebook or a terminal shows it."""

    def __init__(self, comparison: Comparison, failure: str | None = None) -> None:
        """Take the comparison.

        Args:
            comparison: The comparison of the runs.
            failure: The sentence that a later run failed, which is itself a difference; None if none did.
        """
        self._comparison = comparison
        self._failure = failure
        self._is_shown = failure is None or comparison.first_divergence is not None

    def _repr_html_(self) -> str:
        failure = "" if self._failure is None else f"<p>{escape(self._failure)}</p>"
        return f"{failure}{self._comparison._repr_html_()}" if self._is_shown else failure

    def __repr__(self) -> str:
        lines = [] if self._failure is None else [self._failure]
        return "\n".join([*lines, self._comparison.report().rstrip("\n")] if self._is_shown else lines)


def _show(report: _CellReport) -> None:
    import_module("IPython.display").display(report)

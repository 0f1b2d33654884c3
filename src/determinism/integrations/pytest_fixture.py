"""The fixture `determinism`, with which a test calls parts of itself again, or records and compares them."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from determinism.comparison.result import Comparison
from determinism.errors import UsageError
from determinism.golden.ledger import ledger_of, read_golden, require_writable, text_of, write_golden
from determinism.golden.result import compare_ledgers
from determinism.integrations.pytest_properties import UPDATE_OPTION, note, note_comparison
from determinism.session.check import check, compare
from determinism.session.record import record
from determinism.trace.opening import open_trace
from determinism.types import Level, LevelName

if TYPE_CHECKING:
    from determinism.frameworks.session import AdapterSession


class TestDeterminism:
    """The fixture `determinism`: its methods fail the test if tensors are not bit-identical.

    All other names are those of the module `determinism`, which the argument shadows in the test.
    """

    __test__ = False
    """Keeps pytest from collecting tests from it if a test file imports it."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, module: ModuleType) -> None:
        """Take what the fixture needs.

        Args:
            request: The request of the test.
            folder: An empty folder for traces.
            module: The module `determinism`.
        """
        self._item = request.node
        self._folder = folder
        self._module = module
        self._goldens = 0

    def check(self, function: Callable[..., Any], /, *args: Any, runs: int = 2, **kwargs: Any) -> Comparison:
        """Call a function twice or more from the same state, and fail the test unless every tensor is bit-identical.

        Args:
            function: What to check.
            *args: Its arguments.
            runs: How often it is called.
            **kwargs: Its keyword arguments.

        Raises:
            DifferenceError: The runs differ, or there is no verdict; the message is the report.
            StateError: Something that the function can reach cannot be copied.
            UsageError: No supported framework is imported, or fewer than two runs are requested.

        Returns:
            The comparison.
        """
        __tracebackhide__ = True
        return self._judged(check(function, *args, runs=runs, **kwargs))

    @contextmanager
    def record(
        self, name: str, *, level: LevelName | Level = "op", values: int | None = None
    ) -> Iterator[AdapterSession]:
        """Record the `with` block, for `compare`.

        Args:
            name: Its name for `compare`. It is kept for this test only.
            level: `op`, `module` or `step`.
            values: Keep up to this many elements of each tensor.

        Raises:
            UsageError: No supported framework is imported, the name is not a file name or was used before, or a recording is running.

        Yields:
            The recording.
        """
        trace = self._trace(name)
        if trace.exists():
            raise UsageError(
                "recording-exists", f"This test has recorded {name!r} before. Give each recording its own name."
            )
        with record(trace, level=level, values=values) as session:
            yield session

    def compare(self, *names: str | os.PathLike[str], strict: bool = False) -> Comparison:
        """Compare recordings, and fail the test unless every tensor is bit-identical.

        Args:
            *names: Names that were passed to `record`, or paths of other traces.
            strict: Count differences that nothing reads, too.

        Raises:
            DifferenceError: The recordings differ, or there is no verdict; the message is the report.
            TraceError: A trace cannot be read.
            UsageError: There are fewer than two names.

        Returns:
            The comparison.
        """
        __tracebackhide__ = True
        own = [self._folder / name for name in names]
        paths = [
            mine if isinstance(name, str) and mine.exists() else Path(name)
            for name, mine in zip(names, own, strict=True)
        ]
        return self._judged(compare(*paths, strict=strict))

    @contextmanager
    def same_as_golden(self, path: str | os.PathLike[str]) -> Iterator[AdapterSession]:
        """Record the steps of the `with` block, and fail the test unless they match a committed golden.

        `pytest --determinism-update-goldens` writes the golden.

        Args:
            path: The path of the golden, relative to the folder of the test's file.

        Raises:
            DifferenceError: The steps differ from the golden; the message is the report.
            TraceError: The golden is damaged.
            UsageError: There is no golden, the block has no step, no supported framework is imported, or a recording is running.

        Yields:
            The recording.
        """
        __tracebackhide__ = True
        golden = self._item.path.parent / path
        is_updated = self._item.config.getoption(UPDATE_OPTION)
        if not is_updated and not golden.exists():
            raise UsageError(
                "golden-missing",
                f"There is no golden {golden}, so there is nothing to compare with. Write it with: pytest "
                f"--determinism-update-goldens {shlex.quote(self._item.nodeid)}",
            )
        if is_updated:
            require_writable(golden)
        self._goldens += 1
        trace = self._folder / f"golden {self._goldens}"
        with record(trace, level=Level.STEP) as session:
            yield session
        # Not the command of the session, which varies with the selection of tests.
        found = replace(ledger_of(open_trace(trace)), command=f"pytest {self._item.nodeid}")
        if is_updated:
            write_golden(golden, text_of(found), update=True)
            return
        comparison = replace(compare_ledgers(read_golden(golden), found), commits=("-", "-"))
        note(self._item, comparison.verdict)
        comparison.raise_if_different()

    def _judged(self, comparison: Comparison) -> Comparison:
        __tracebackhide__ = True
        note_comparison(self._item, comparison)
        comparison.raise_if_different()
        return comparison

    def _trace(self, name: str) -> Path:
        if not name or name in (".", "..") or Path(name).name != name:
            raise UsageError(
                "recording-name", f"A recording is called {name!r}, which is not a file name. Use one like 'first'."
            )
        return self._folder / name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def opened(request: pytest.FixtureRequest, module: ModuleType) -> Iterator[TestDeterminism]:
    """The fixture, with a folder for its traces, which is removed afterwards.

    Args:
        request: The request of the test.
        module: The module `determinism`.
    """
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        yield TestDeterminism(request, Path(folder), module)

"""Frameworks are requested, not discovered, and the summary counts the tests that were not run.

`DETERMINISM_TEST_FRAMEWORKS` lists the frameworks to test with, separated by commas. Of the files in `FRAMEWORK_FOLDERS`,
only those whose framework is requested are collected; a requested framework that cannot be imported fails the session.
A file's name determines its framework: `test_tensorflow_...` and `test_jax_...`; all others need PyTorch, and those in
`tests/integrations` also need the libraries built on it, which `integrations` requests.

Tests that resemble others that are always run are marked with the part that they belong to, `thorough("causes")`, and slow tests
(`slow_tests.py`) belong to a part at eleven of twelve commits. They are left out and counted, unless `DETERMINISM_TEST_THOROUGH` names
their part: then only the tests of the named parts are run.
"""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.slow_tests import PARTS as PARTS_OF_SLOW_TESTS
from tests.slow_tests import TURNS, hands
from tests.thorough import PARTS, commit, is_turn, requested_parts
from tests.thorough import VARIABLE as THOROUGH

VARIABLE = "DETERMINISM_TEST_FRAMEWORKS"
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "integrations": "lightning"}
"""What can be requested, each with a module that exists if it is installed."""
FRAMEWORK_FOLDERS = ("adapters", "e2e", "integrations")
NO_GPU = "no GPU was found"
NO_TRITON = "Triton is not installed"
NO_NATIVE_RECORDER = "it cannot be built here, and make recorder says why"
NO_BROWSER = "no Chromium or Chrome was found"
_BROWSER_NEEDED = f"a browser; {NO_BROWSER}, neither on PATH nor in {chromium.VARIABLE}"

_TESTS = Path(__file__).parent


def requested_frameworks() -> list[str]:
    """Return the requested frameworks."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def pytest_configure(config: pytest.Config) -> None:
    for name in requested_frameworks():
        if name not in FRAMEWORKS:
            raise pytest.UsageError(f"{VARIABLE} asks for {name!r}; there are tests for {', '.join(FRAMEWORKS)}.")
        try:
            import_module(FRAMEWORKS[name])
        except ImportError as error:
            raise pytest.UsageError(f"{VARIABLE} asks for {name}, which cannot be imported ({error}).") from error
    if unknown := [name for name in requested_parts() if name not in PARTS]:
        raise pytest.UsageError(f"{THOROUGH} asks for {', '.join(unknown)}; there are the parts {', '.join(PARTS)}.")
    # Otherwise the first recorded program would build it, and print a message about it.
    _has_native_recorder()


def needed_framework(path: Path) -> str | None:
    """Return the framework that the tests of a file need; None if they need none, or for a folder."""
    folders = path.relative_to(_TESTS).parts[:1] if path.is_relative_to(_TESTS) else ()
    if folders not in [(name,) for name in FRAMEWORK_FOLDERS] or not path.name.startswith("test_"):
        return None
    others = "integrations" if folders == ("integrations",) else "torch"
    return next((name for name in FRAMEWORKS if path.name.startswith(f"test_{name}_")), others)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    framework = needed_framework(collection_path)
    return None if framework is None or framework in requested_frameworks() else True


def thorough_part(item: pytest.Item) -> str | None:
    """Return the part of the thorough tests that a test belongs to; None if it is run at this commit."""
    marker = item.get_closest_marker("thorough")
    if marker is None:
        hand = hands().get(item.nodeid)
        if hand is None or is_turn(hand, TURNS):
            return None
        marker = pytest.mark.thorough(PARTS_OF_SLOW_TESTS[needed_framework(item.path) or "torch"]).mark
        item.add_marker(pytest.mark.thorough(*marker.args))
    if len(marker.args) != 1 or marker.args[0] not in PARTS:
        raise pytest.UsageError(
            f"{item.nodeid} is marked thorough{marker.args}; there are the parts {', '.join(PARTS)}."
        )
    return str(marker.args[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts = requested_parts()
    by_part = {item: thorough_part(item) for item in items}
    if parts:
        left_out = [item for item, part in by_part.items() if part not in parts]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, part in by_part.items() if part in parts]
    else:
        for item, part in by_part.items():
            if part is not None:
                item.add_marker(pytest.mark.skip(reason=f"make thorough PART={part} runs it"))
    needs = (
        ("gpu", _has_gpu, NO_GPU),
        ("triton", _has_triton, NO_TRITON),
        ("browser", _has_browser, NO_BROWSER),
        ("native_recorder", _has_native_recorder, NO_NATIVE_RECORDER),
    )
    for marker, is_there, reason in needs:
        marked = [item for item in items if item.get_closest_marker(marker) is not None]
        if marked and not is_there():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _has_gpu() -> bool:
    return "torch" in requested_frameworks() and bool(import_module("torch").cuda.is_available())


def _has_triton() -> bool:
    return find_spec("triton") is not None


def _has_browser() -> bool:
    return chromium.find_browser() is not None


@cache
def _has_native_recorder() -> bool:
    """Whether the native recorder exists or can be built now."""
    if "torch" not in requested_frameworks():
        return False
    library = import_module("determinism.frameworks.torch.native_library")
    try:
        library.build(lambda line: None, again=False)
    except library.NotNative:
        return False
    return True


def uncollected(framework: str) -> tuple[int, int]:
    """Return the number of test functions that need a framework, and of their files."""
    found = [path for folder in FRAMEWORK_FOLDERS for path in sorted((_TESTS / folder).rglob("test_*.py"))]
    files = [path for path in found if needed_framework(path) == framework]
    return sum(len(list(_functions(path))) for path in files), len(files)


def _functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


@pytest.fixture(autouse=True)
def no_seeds_in_force() -> Iterator[None]:
    """Take seeds that a test put in force away after it, so that they do not affect the next one, whichever that is."""
    yield
    # Imported by the tests that seed; the others do without it.
    if seeding := sys.modules.get("determinism.session.seeding"):
        seeding.activate(None)


MadeOnce = Callable[[str, Callable[[Path], None]], Path]
"""Returns the folder with a name, which the function has filled."""


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Return a folder that several tests read; it is filled once, not by each pytest-xdist worker that runs such a test."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder_of(name: str, fill: Callable[[Path], None]) -> Path:
        folder, made = shared / f"made-once-{name}", shared / f"made-once-{name}.made"
        with (shared / f"made-once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                # If a test failed while filling the folder, the next one starts over.
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                made.touch()
        return folder

    return folder_of


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in FRAMEWORKS:
        functions, files = uncollected(name)
        if name not in requested_frameworks():
            terminalreporter.write_line(
                f"NOT RUN: {functions} test functions in {files} files, which need {name}; {VARIABLE}={name} runs them."
            )
    needs = (
        ("gpu", _has_gpu, f"need a GPU; {NO_GPU}"),
        ("triton", _has_triton, f"need Triton; {NO_TRITON}"),
        ("browser", _has_browser, f"need {_BROWSER_NEEDED}"),
        ("native_recorder", _has_native_recorder, f"need the native recorder of PyTorch; {NO_NATIVE_RECORDER}"),
    )
    for marker, is_there, needed in needs:
        # If nothing is lacking, the tests were skipped for a different reason.
        found = [] if is_there() else terminalreporter.stats.get("skipped", [])
        skipped = [report for report in found if marker in report.keywords]
        if skipped:
            terminalreporter.write_line(f"NOT RUN: {len(skipped)} tests that {needed}.")
    reports = [] if requested_parts() else terminalreporter.stats.get("skipped", [])
    if long := sum("thorough" in report.keywords for report in reports):
        terminalreporter.write_line(
            f"NOT RUN: {long} tests that take long; make thorough runs them, and says in which parts."
        )
    terminalreporter.write_line(f"Of each sweep, the slice that commit {commit()[:12]} chooses was run.")

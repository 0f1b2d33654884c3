"""The pytest plugin: `@pytest.mark.deterministic`, `--determinism` and the fixture `determinism`.

pytest loads this module in every session of an environment that has this package, so it imports only names, and has no hook
that is called for each test: the hooks that repeat tests are registered only if a selected test requests it.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from determinism.integrations.pytest_properties import MARKER, NOT_CHECKED, OPTION, PROPERTY, UPDATE_OPTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from determinism.integrations.pytest_fixture import TestDeterminism

_MARKER_LINE = (
    f"{MARKER}(runs=2, level='op', steps=None, restore_generators=False, warmup=0, unrestored=()): run the test several times from the same "
    "state, and fail unless every tensor is bit-identical; see docs/pytest.md of determinism."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--determinism` and `--determinism-update-goldens`."""
    group = parser.getgroup("determinism")
    group.addoption(
        "--determinism",
        action="store_true",
        dest=OPTION,
        help="Run every selected test twice from the same state, and fail those whose tensors are not bit-identical.",
    )
    group.addoption(
        "--determinism-update-goldens",
        action="store_true",
        dest=UPDATE_OPTION,
        help="Write the goldens that selected tests compare with, replacing existing ones.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER_LINE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Register the hooks that repeat tests, if a selected test requests it."""
    if config.getoption(OPTION) or any(item.get_closest_marker(MARKER) is not None for item in items):
        runs = import_module("determinism.integrations.pytest_runs")
        config.pluginmanager.register(runs.RepeatedTests(config), "determinism-runs")


@pytest.fixture(name="determinism")
def determinism_fixture(request: pytest.FixtureRequest) -> Iterator[TestDeterminism]:
    """`check`, `record`, `compare` and `same_as_golden`, which fail the test if tensors are not bit-identical."""
    import determinism

    module = import_module("determinism.integrations.pytest_fixture")
    with module.opened(request, determinism) as fixture:
        yield fixture


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the verdicts, and list why tests could not be checked."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [
        (report.nodeid, dict(report.user_properties))
        for report in reports
        if getattr(report, "when", None) == "call" and getattr(report, "user_properties", None)
    ]
    verdicts = [values[f"{PROPERTY}verdict"] for _, values in properties if f"{PROPERTY}verdict" in values]
    if not verdicts:
        return
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    terminalreporter.write_line(f"determinism: {counts}")
    reasons = [
        values.get(f"{PROPERTY}reason") for _, values in properties if values.get(f"{PROPERTY}verdict") == NOT_CHECKED
    ]
    for reason in dict.fromkeys(reasons):
        terminalreporter.write_line(f"  {NOT_CHECKED}: {reasons.count(reason)}, {reason}")

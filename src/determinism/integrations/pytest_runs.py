"""Runs a test several times from the same state and compares the recordings.

Each run is the whole test, with its own fixtures of scope `function`. State that lives longer (fixtures of wider scopes,
parameters, the class, and what the test and its fixtures reach in modules) is copied before the first of these fixtures is
made, and put back at that point in later runs. Only the body is recorded.
"""

from __future__ import annotations

import inspect
import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from _pytest.runner import call_and_report

from determinism.comparison.result import Comparison
from determinism.errors import DeterminismError, StateError, UsageError
from determinism.frameworks.registry import RECORDERS, STATES
from determinism.integrations.pytest_properties import MARKER, NOT_CHECKED, OPTION, note, note_comparison
from determinism.run_spec import RUN_VARIABLE, RunSpec
from determinism.seeds import Streams, seed_numpy, seed_python
from determinism.session.check import StartingState, compare_runs_of, import_frameworks_of
from determinism.session.record import is_recording, recording
from determinism.session.snapshot import GeneratorSnapshot, Snapshot
from determinism.types import Kind, Level, Verdict

_MOST_PREPARATIONS = 2
"""How many runs may only make fixtures that outlive them, before the runs that are compared."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a test is to be run."""

    runs: int = 2
    level: str = Level.OP
    steps: int | None = None
    """How many steps of each run are compared; later ones are run, but not recorded."""
    restore_generators: bool = False
    """Whether later runs begin with the random generators in the same states as the first one; if not, in different ones."""
    warmup: int = 0
    """How many runs precede those that are compared."""
    unrestored: Sequence[str] = ()
    """Fixtures that are left as they are between runs."""
    is_marked: bool = True
    """Whether the test has the marker; if not, `--determinism` requests the runs."""


def plan_of(item: pytest.Item) -> Plan | None:
    """How a test is to be run; None for once, as usual.

    Raises:
        UsageError: The marker has unknown or invalid arguments.
    """
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return Plan(is_marked=False) if item.config.getoption(OPTION) else None
    if marker.args:
        raise _wrong_marker(f"got {len(marker.args)} positional arguments")
    unknown = marker.kwargs.keys() - {field.name for field in fields(Plan) if field.name != "is_marked"}
    if unknown:
        raise _wrong_marker(f"got {', '.join(sorted(unknown))}, which it does not know")
    plan = Plan(**marker.kwargs)
    if not _is_number(plan.runs) or plan.runs < 2:
        raise _wrong_marker(f"got runs={plan.runs!r}; comparing needs two runs or more")
    if plan.level not in set(Level):
        raise _wrong_marker(f"got level={plan.level!r}; choose from {', '.join(Level)}")
    if plan.steps is not None and (not _is_number(plan.steps) or plan.steps < 1):
        raise _wrong_marker(f"got steps={plan.steps!r}; give a number of at least 1, or leave it out for all")
    if not _is_number(plan.warmup) or plan.warmup < 0:
        raise _wrong_marker(f"got warmup={plan.warmup!r}; give the number of runs before those that are compared")
    names = (plan.unrestored,) if isinstance(plan.unrestored, str) else tuple(plan.unrestored)
    fixtures = getattr(item, "fixturenames", ())
    missing = [name for name in names if name not in fixtures]
    if missing:
        raise _wrong_marker(f"got unrestored={names!r}, and the test uses no fixture {', '.join(map(repr, missing))}")
    return replace(plan, unrestored=names)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_marker(found: str) -> UsageError:
    return UsageError(
        "marker-arguments",
        f"@pytest.mark.{MARKER} {found}. Write for example @pytest.mark.{MARKER}(runs=2, level='op', steps=None).",
    )


def why_not_repeated(item: pytest.Item) -> UsageError | None:
    """Why a test cannot be run several times in this process; None if it can."""
    function = getattr(item, "function", None)
    reason = None
    if not isinstance(item, pytest.Function) or function is None:
        reason = "it is not a Python function"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        reason = "it is asynchronous: what its tasks do may be ordered differently in each run, and only one thread is recorded"
    elif inspect.isgeneratorfunction(function):
        reason = "it is a generator, which pytest does not run"
    elif getattr(function, "is_hypothesis_test", False):
        reason = "Hypothesis draws different examples in each run"
    if reason is None:
        return None
    return UsageError(
        "test-not-repeatable",
        f"This test cannot be run several times and compared, since {reason}. Move what is to be checked into a plain function, and "
        "call that from a test of its own.",
    )


class RepeatedTests:
    """The hooks that run tests several times; registered only if a selected test requests it."""

    def __init__(self, config: pytest.Config) -> None:
        """Note whether this process is already being recorded."""
        self._current: _RepeatedTest | None = None
        # `determinism check -- pytest` compares whole sessions: there each test is run once.
        self._is_recorded = RUN_VARIABLE in os.environ

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test that is to be checked."""
        if item.config.getoption("setuponly", False):
            return None
        problem: DeterminismError | None = None
        plan: Plan | None = Plan()
        try:
            plan = plan_of(item)
            problem = None if plan is None else why_not_repeated(item)
        except UsageError as error:
            problem = error
        if plan is None:
            return None
        if self._is_recorded or is_recording():
            note(item, NOT_CHECKED, reason="tests that were run once, since this whole session is recorded already")
            return None
        if problem is None and not plan.is_marked and "determinism" in getattr(item, "fixturenames", ()):
            # It makes its own recordings, and these do not nest.
            note(item, NOT_CHECKED, reason="tests that use the fixture `determinism`, which make their own recordings")
            return None
        if problem is not None and not plan.is_marked:
            note(
                item,
                NOT_CHECKED,
                reason="tests that are not plain functions: asynchronous ones, and those of other kinds",
            )
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
            self._current = _RepeatedTest(item, plan, problem, Path(folder))
            try:
                self._current.run(nextitem)
            finally:
                self._current = None
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Copy or put back the state before the first fixture that belongs to a single run."""
        if self._current is None:
            return
        if fixturedef.scope == "function":
            self._current.begin()
        else:
            self._current.wider_fixture()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the body, and compare after the last run."""
        current = self._current
        if current is None or current.item is not item:
            return (yield)
        with current.recorded():
            result = yield
        current.conclude()
        return result


class _RepeatedTest:
    """One test, from its first run to the verdict."""

    def __init__(self, item: pytest.Item, plan: Plan, problem: DeterminismError | None, folder: Path) -> None:
        self.item: Any = item
        self._plan = plan
        self._problem = problem
        """Why it cannot be checked."""
        self._folder = folder
        self._number = 0
        self._preparations = 0
        self._makes_wider_fixtures = False
        self._has_begun = False
        self._is_over = False
        self._start: StartingState | None = None
        self._generators_afterwards: GeneratorSnapshot | None = None
        self._traces: list[Path] = []

    # The runs, each with the phases that pytest reports.

    def run(self, nextitem: pytest.Item | None) -> None:
        """Run the test as often as planned, or until it fails, and report the last run."""
        try:
            self._run(nextitem)
        finally:
            # The next test draws what it would have drawn after one run.
            if self._generators_afterwards is not None:
                self._generators_afterwards.restore()

    def _run(self, nextitem: pytest.Item | None) -> None:
        item = self.item
        seconds = [0.0, 0.0, 0.0]
        while True:
            self._number += 1
            self._has_begun = False
            # The output of earlier runs would be shown again.
            item._report_sections.clear()
            if not item._request:
                item._initrequest()
            try:
                reports = [call_and_report(item, "setup", log=False)]
                if reports[0].passed:
                    reports.append(call_and_report(item, "call", log=False))
                is_last = self._is_over or not all(report.passed or _is_unexpected_pass(report) for report in reports)
                if is_last:
                    self._log(reports, seconds)
                    # As in pytest: a session that stops also tears down all that is left.
                    if item.session.shouldfail or item.session.shouldstop:
                        nextitem = None
                following = nextitem if is_last else item.parent
                teardown = call_and_report(item, "teardown", log=False, nextitem=following)
                if not is_last and not teardown.passed:
                    self._log(reports, seconds)
                    # Fixtures that outlive one run were to be kept for the next one.
                    rest = call_and_report(item, "teardown", log=False, nextitem=nextitem)
                    self._log([teardown] if rest.passed else [teardown, rest], seconds[2:])
                    return
                if is_last:
                    self._log([teardown], seconds[2:])
                    return
                for number, report in enumerate([*reports, teardown]):
                    seconds[number] += report.duration
            finally:
                item._request = False
                item.funcargs = None

    def _log(self, reports: list[pytest.TestReport], seconds: list[float]) -> None:
        for report, earlier in zip(reports, seconds, strict=False):
            report.duration += earlier
            self.item.ihook.pytest_runtest_logreport(report=report)

    # What happens within a run.

    def begin(self) -> None:
        """Copy the state that the runs start from in the first run; put it back in the others."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._problem is not None:
            return
        try:
            if self._start is None:
                self._start = StartingState(self._snapshot())
                return
            self._start.restore()
        except StateError as error:
            # Raised here, it would leave pytest with a half-made fixture; the body is not run.
            self._problem = self._state_error(error)
            return
        if not self._plan.restore_generators:
            _perturb_generators()

    def _snapshot(self) -> Snapshot:
        function = self.item.obj
        named: dict[str, object] = dict(getattr(getattr(self.item, "callspec", None), "params", {}))
        if self.item.cls is not None:
            named[self.item.cls.__qualname__] = self.item.cls
        for name, definitions in self.item._fixtureinfo.name2fixturedefs.items():
            definition = definitions[-1]
            if definition.scope == "function":
                # It may read and change state that lives longer.
                made_by = getattr(definition.func, "__func__", definition.func)
                if isinstance(made_by, FunctionType):
                    named[f"{name}()"] = made_by
            elif name not in self._plan.unrestored and definition.cached_result is not None:
                named[name] = definition.cached_result[0]
        return Snapshot.take(getattr(function, "__func__", function), (), {}, named)

    def _state_error(self, error: StateError) -> UsageError:
        fixtures = self.item._fixtureinfo.name2fixturedefs
        finding = error.finding or error.message
        name = next((name for name in fixtures if finding.startswith((f"{name}.", f"{name}[", f"{name} "))), None)
        scope = "" if name is None else f" `{name}` is a fixture of scope {fixtures[name][-1].scope}."
        leave = "" if name is None else f', or leave it as it is with @pytest.mark.{MARKER}(unrestored=("{name}",))'
        return UsageError(
            "test-state",
            f"{finding}, so the second run would not start where the first one did.{scope} Make it in the test or in a fixture "
            f"of scope function{leave}; or check in new processes: {shlex.join(self._command())}",
        )

    def wider_fixture(self) -> None:
        """Note that a fixture that outlives the run is made; if the run has begun, only the next one starts with it in place."""
        self._makes_wider_fixtures |= self._has_begun

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the body."""
        self.begin()
        if self._problem is not None:
            self._fail(self._problem)
        import_frameworks_of(getattr(getattr(self.item.obj, "__func__", self.item.obj), "__code__", None))
        if not any(name in sys.modules for name in RECORDERS):
            self._problem = UsageError(
                "test-without-framework",
                f"The test used none of {', '.join(RECORDERS)}, so no tensor could be compared and nothing is known about its "
                f"determinism. Import the framework at the top of the file, or remove @pytest.mark.{MARKER}.",
            )
            yield
            return
        trace = self._folder / f"run-{self._preparations}-{self._number}"
        self._traces.append(trace)
        try:
            with recording(RunSpec(trace, level=Level(self._plan.level), steps=self._plan.steps)) as session:
                # What is recorded at the end, such as state that differs, comes from no line of pytest.
                session.begin_at(sys._getframe())
                yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """Report that a run failed, which is a difference if an earlier one did not."""
        if self._number == 1:
            return
        before = "run 1" if self._number == 2 else f"runs 1 to {self._number - 1}"
        begin = f"run {self._number} of {self._plan.runs} failed, and {before} passed, from the same state."
        try:
            comparison = self._compared()
        except DeterminismError as trouble:
            note(self.item, Verdict.DIFFERENT)
            said = f"{begin} What they recorded cannot be compared: {trouble}"
        else:
            note_comparison(self.item, comparison, Verdict.DIFFERENT)
            is_same = comparison.first_divergence is None
            said = f"{begin} " + (
                "What they recorded is equal." if is_same else f"What they recorded:\n{self._report(comparison)}"
            )
        if isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
            pytest.fail(f"Different: {said}", pytrace=False)
        error.add_note(f"\nDifferent: {said}")

    def conclude(self) -> None:
        """End a run whose body is complete; after the last run, compare."""
        if self._generators_afterwards is None:
            self._generators_afterwards = GeneratorSnapshot.take()
        if self._problem is not None:
            self._is_over = True
            if self._plan.is_marked:
                self._fail(self._problem)
            note(self.item, NOT_CHECKED, reason="tests that ran no op of a framework")
            return
        most = self._plan.warmup + _MOST_PREPARATIONS
        is_needed = self._preparations < self._plan.warmup or (self._makes_wider_fixtures and self._preparations < most)
        if self._number == 1 and is_needed:
            self._preparations += 1
            self._makes_wider_fixtures = False
            self._number, self._start = 0, None
            self._traces.clear()
            return
        if self._number < self._plan.runs:
            return
        self._is_over = True
        try:
            comparison = self._compared()
        except DeterminismError as error:
            self._fail(error)
        if not self._plan.is_marked and any(one.identifier == "nothing-recorded" for one in comparison.trouble):
            note(self.item, NOT_CHECKED, reason="tests that ran no op of a framework")
            return
        note_comparison(self.item, comparison)
        if comparison.verdict is not Verdict.SAME:
            pytest.fail(self._report(comparison), pytrace=False)

    # The verdict.

    def _compared(self) -> Comparison:
        return compare_runs_of(self._command()[3:], self._traces)

    def _report(self, comparison: Comparison) -> str:
        lines = [comparison.report().rstrip("\n")]
        first = comparison.first_divergence
        if first is None:
            return lines[0]
        lines += ["", f"  op                {first.op}", f"  kind              {first.kind or 'unknown'}"]
        if first.kind is Kind.RNG and not self._plan.restore_generators:
            lines += [
                "",
                "Before each run after the first one, the random generators are put into different states, as other tests before this one "
                f"would leave them. Seed in the test or in a fixture of scope function, or, if a wider fixture does it on purpose, write "
                f"@pytest.mark.{MARKER}(restore_generators=True).",
            ]
        is_fixed = self._plan.restore_generators or not self._has_own_fixtures()
        if first.kind is Kind.DATA and not is_fixed:
            lines += [
                "",
                "Values that fixtures of scope function or setup methods make come from outside the test's body. If they draw them at random, "
                "seed there: before each run after the first one, the random generators are put into different states, as other tests "
                "before this one would leave them.",
            ]
        if first.kind is Kind.STRUCTURE and not self._plan.warmup:
            lines += [
                "",
                "If a library does this only once in a process, such as compiling or filling a cache, run the test once before the runs "
                f"that are compared: @pytest.mark.{MARKER}(warmup=1).",
            ]
        if not any(cause.status != "possible" for cause in comparison.causes):
            lines += ["", f"To search for the cause: {shlex.join(self._command())}"]
        return "\n".join(lines)

    def _has_own_fixtures(self) -> bool:
        """Whether fixtures are made anew for each run, setup methods among them."""
        definitions = self.item._fixtureinfo.name2fixturedefs.values()
        return any(found[-1].scope == "function" and found[-1].argname != "request" for found in definitions)

    def _command(self) -> list[str]:
        return ["determinism", "check", "--", "python", "-m", "pytest", self.item.nodeid]

    def _fail(self, error: DeterminismError) -> Any:
        self._is_over = True
        note(self.item, Verdict.INCONCLUSIVE, reason=error.message)
        pytest.fail(f"Inconclusive: {error.message} [{error.identifier}]", pytrace=False)


def _is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Whether a test that is expected to fail passed; a later run may still fail, as expected."""
    return report.when == "call" and isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)]")


_perturbations = itertools.count(1)


def _perturb_generators() -> None:
    """Put the global generators into states with which no other run of this session has begun."""
    streams = Streams(next(_perturbations))
    seed_python(streams)
    seed_numpy(streams)
    for name, module in STATES.items():
        if name in sys.modules:
            import_module(module).seed(streams)

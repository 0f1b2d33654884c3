"""The pytest plugin reruns marked tests from the same state and fails them if their tensors differ; it leaves all other tests alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as Xml
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MadeOnce

CONFIGURATION = (
    '[tool.pytest.ini_options]\naddopts = ["--strict-markers", "-p", "no:cacheprovider"]\nfilterwarnings = ["error"]\n'
)


@dataclass
class Session:
    """The outcome of a pytest session."""

    status: int
    output: str
    cases: dict[str, Xml.Element]

    def outcome(self, test: str) -> str:
        """Return `passed`, `failure`, `error` or `skipped`."""
        found = [child.tag for child in self.cases[test] if child.tag in ("failure", "error", "skipped")]
        return " ".join(found) or "passed"

    def properties(self, test: str) -> dict[str, str]:
        names = {entry.get("name", ""): entry.get("value", "") for entry in self.cases[test].iter("property")}
        return {name.removeprefix("determinism."): value for name, value in names.items()}

    def verdict(self, test: str) -> str | None:
        return self.properties(test).get("verdict")

    def text(self, test: str) -> str:
        """The text of a test's report."""
        return "\n".join(entry.text or "" for entry in self.cases[test] if entry.tag in ("failure", "error"))


def session(folder: Path, *options: str, **environment: str) -> Session:
    """Run the tests in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={folder / 'junit.xml'}", *options]
    # Variables of the pytest session that runs this test.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    finished = subprocess.run(
        command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    return Session(finished.returncode, finished.stdout + finished.stderr, cases_of(folder))


def shared_session(
    made_once: MadeOnce, name: str, files: Mapping[str, str], *options: str, **environment: str
) -> Session:
    """Run the tests of a project once, and share the session among all tests of this file.

    Args:
        made_once: The fixture.
        name: The name of the project, which must be unique.
        files: The source of each module, by name.
        *options: Options for pytest.
        **environment: Additional environment variables.
    """

    def fill(folder: Path) -> None:
        ran = session(project(folder, **files), *options, **environment)
        (folder / "ended.json").write_text(json.dumps([ran.status, ran.output]))

    folder = made_once(name, fill)
    status, output = json.loads((folder / "ended.json").read_text())
    return Session(status, output, cases_of(folder))


def cases_of(folder: Path) -> dict[str, Xml.Element]:
    """The JUnit XML element of each test of the session in a folder, by name."""
    try:
        return {str(case.get("name")): case for case in Xml.parse(folder / "junit.xml").iter("testcase")}
    except FileNotFoundError:
        return {}


def project(folder: Path, **files: str) -> Path:
    """Write a project with the given modules."""
    (folder / "pyproject.toml").write_text(CONFIGURATION)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


BODIES = """
    import os, random
    import numpy, pytest, torch

    pytestmark = pytest.mark.deterministic

    def read(values):
        return (values * 2).sum().item()

    def test_unseeded():
        read(torch.rand(4))  # SITE

    def test_seeded():
        torch.manual_seed(0)
        read(torch.rand(4))

    @pytest.fixture
    def seeded():
        torch.manual_seed(0)

    @pytest.mark.deterministic(runs=3)
    def test_seeded_by_fixture(seeded):
        read(torch.rand(4))

    @pytest.mark.deterministic(restore_generators=True)
    def test_generators_put_back():
        read(torch.rand(4))

    def test_generator_without_seed():
        read(torch.tensor(numpy.random.default_rng().random(4)))

    class Key:
        def __init__(self, number):
            self.number, self.hash = number, int.from_bytes(os.urandom(8))
        def __hash__(self):
            return self.hash

    def test_set_order():
        total = torch.ones(1)
        for key in {Key(number) for number in range(24)}:
            total = total * 1.5 + key.number  # SITE-SET
        total.item()

    def test_list_order():
        total = torch.ones(1)
        for key in [Key(number) for number in range(24)]:
            total = total * 1.5 + key.number
        total.item()

    def test_number_of_ops():
        for _ in range(NUMBERS.pop()):
            read(torch.ones(2))
    NUMBERS = [1, 2, 3]

    def done_once(name):
        values = torch.ones(2)
        # In a module that is no part of what is put back.
        if not hasattr(numpy, name):
            setattr(numpy, name, True)
            values = values + 1
        read(values)

    @pytest.mark.deterministic(warmup=0)
    def test_done_once():
        done_once("cached")

    @pytest.mark.deterministic(warmup=1)
    def test_done_once_in_the_warmup():
        done_once("cached_in_warmup")

    def test_without_tensors():
        assert 1 + 1 == 2

    async def test_asynchronous():
        read(torch.ones(2))

    @pytest.mark.deterministic(run=3)
    def test_misspelt_marker():
        read(torch.ones(2))

    @pytest.mark.deterministic(runs=1)
    def test_one_run():
        read(torch.ones(2))

    @pytest.mark.deterministic(level="step")
    def test_level_without_steps():
        read(torch.ones(2))

    @pytest.mark.deterministic(steps=2)
    def test_steps_before_the_difference():
        train(os.urandom(1)[0] / 7, steps=4, differing=3)

    @pytest.mark.deterministic(steps=4)
    def test_steps_with_the_difference():
        train(int.from_bytes(os.urandom(6)) / 7, steps=4, differing=3)

    def train(value, steps, differing):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((1, 2), value if step == differing else 1.0)).sum().backward()
            optimizer.step()
"""


@pytest.fixture(
    params=[pytest.param("", id="default"), pytest.param("python", marks=pytest.mark.thorough("launching"))]
)
def bodies(request: pytest.FixtureRequest, made_once: MadeOnce) -> Session:
    # By default the native recorder, if it can be built.
    files = {"test_bodies": BODIES}
    return shared_session(made_once, f"bodies-{request.param}", files, DETERMINISM_RECORDER=request.param)


def line_of(mark: str) -> int:
    lines = textwrap.dedent(BODIES).splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))


@pytest.mark.parametrize(
    "test",
    [
        "test_seeded",
        "test_seeded_by_fixture",
        "test_generators_put_back",
        "test_list_order",
        "test_done_once_in_the_warmup",
        "test_number_of_ops",
    ],
)
def test_clean_tests_pass(bodies: Session, test: str) -> None:
    assert (bodies.outcome(test), bodies.verdict(test)) == ("passed", "same")


def test_a_missing_seed_fails_with_its_line_and_a_remedy(bodies: Session) -> None:
    text = bodies.text("test_unseeded")
    assert text.startswith(f"Different: random numbers differ at test_bodies.py:{line_of('SITE')}\n")
    assert "aten::rand" in text
    assert "kind              rng" in text
    assert "Seed in the test or in a fixture of scope function" in text
    found = bodies.properties("test_unseeded")
    assert (found["verdict"], found["kind"]) == ("different", "rng")
    assert found["line"].endswith(f"test_bodies.py:{line_of('SITE')}")


def test_a_generator_without_a_seed_is_named_as_the_likely_cause(bodies: Session) -> None:
    text = bodies.text("test_generator_without_seed")
    assert text.startswith("Different: a generator is created without a seed (likely)")


def test_the_order_of_a_set_fails_with_the_line_in_the_loop(bodies: Session) -> None:
    assert bodies.verdict("test_set_order") == "different"
    assert bodies.properties("test_set_order")["line"].endswith(f"test_bodies.py:{line_of('SITE-SET')}")


def test_work_done_only_in_the_first_run_is_a_difference_and_warmup_is_suggested(bodies: Session) -> None:
    assert bodies.properties("test_done_once")["kind"] == "structure"
    assert "@pytest.mark.deterministic(warmup=1)" in bodies.text("test_done_once")


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("test_without_tensors", "no op of it was recorded"),
        ("test_asynchronous", "since it is asynchronous"),
        ("test_misspelt_marker", "got run, which it does not know"),
        ("test_one_run", "got runs=1; comparing needs two runs or more"),
        ("test_level_without_steps", "no step ended"),
    ],
)
def test_a_test_that_cannot_be_checked_fails_and_says_why(bodies: Session, test: str, says: str) -> None:
    assert (bodies.outcome(test), bodies.verdict(test)) == ("failure", "inconclusive")
    assert bodies.text(test).startswith("Inconclusive: ")
    assert says in bodies.text(test)


def test_the_requested_number_of_steps_is_compared(bodies: Session) -> None:
    assert bodies.verdict("test_steps_before_the_difference") == "same"
    assert bodies.verdict("test_steps_with_the_difference") == "different"


def test_the_summary_counts_verdicts(bodies: Session) -> None:
    assert "determinism: 5 different, 5 inconclusive, 7 same" in bodies.output


CONFTEST = """
    import sqlite3, threading
    import pytest, torch

    @pytest.fixture(scope="session")
    def model():
        torch.manual_seed(0)
        yield torch.nn.Linear(4, 4)
        print("model torn down")

    @pytest.fixture(scope="module")
    def optimizer(model):
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    @pytest.fixture(scope="class")
    def counts():
        return {"tests": 0}

    @pytest.fixture
    def batch():
        yield torch.rand(2, 4, generator=torch.Generator().manual_seed(1))

    @pytest.fixture(scope="session")
    def database():
        return sqlite3.connect(":memory:")

    @pytest.fixture(scope="session")
    def batches():
        return (torch.full((2,), float(number)) for number in range(9))

    @pytest.fixture(scope="session")
    def late():
        return torch.nn.Linear(2, 2)

    @pytest.fixture
    def broken():
        raise RuntimeError("this fixture is broken")

    @pytest.fixture
    def broken_afterwards():
        yield
        raise RuntimeError("this fixture breaks when it is torn down")
"""
FIXTURES = """
    import os, unittest
    import pytest, torch

    pytestmark = pytest.mark.deterministic
    CALLS = []

    def train(model, optimizer, batch):
        CALLS.append(batch)
        optimizer.zero_grad()
        (model(batch).sum() * len(CALLS)).backward()
        optimizer.step()

    def test_fixtures_of_each_scope(model, optimizer, batch):
        train(model, optimizer, batch)
        assert len(CALLS) == 1

    def test_effects_are_kept_once(model, optimizer, batch):
        train(model, optimizer, batch)
        assert len(CALLS) == 2

    @pytest.mark.parametrize("values", [torch.zeros(2), torch.ones(2)], ids=["zeros", "ones"])
    def test_parameters(values):
        values += 1
        values.sum().item()

    class TestMethods:
        seen = []

        def setup_method(self):
            self.values = torch.ones(2)

        def test_state_of_class_and_instance(self, counts):
            self.seen.append(1)
            counts["tests"] += 1
            self.values += len(self.seen) + counts["tests"]
            assert self.values.sum().item() == 6

    class TestUnittest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.kept = torch.ones(2)

        def setUp(self):
            self.fresh = torch.ones(2)

        def test_clean(self):
            self.kept += 1
            self.fresh += self.kept
            self.assertEqual(self.fresh.sum().item(), 6)

        def test_random(self):
            torch.full((2,), int.from_bytes(os.urandom(6)) / 7).sum().item()

    def test_builtin_fixtures(tmp_path, capsys, monkeypatch, caplog, recwarn, request, pytestconfig, tmp_path_factory):
        assert not list(tmp_path.iterdir())
        (tmp_path / "file").write_text("text")
        assert "ADDED" not in os.environ
        monkeypatch.setenv("ADDED", "yes")
        print(torch.ones(2).sum().item())
        assert capsys.readouterr().out == "2.0\\n"

    def test_environment_and_folder(tmp_path):
        assert os.environ.get("LEFT") is None and os.path.exists("conftest.py")
        os.environ["LEFT"] = "behind"
        os.chdir(tmp_path)
        torch.ones(2).sum().item()

    def test_folder_of_the_last_run():
        # As after any other test that leaves its folder: what it changed is kept, once.
        assert os.environ.pop("LEFT") == "behind"
        os.chdir(os.path.dirname(__file__))
        torch.ones(2).sum().item()

    def test_connection(database, batch):
        batch.sum().item()

    @pytest.mark.deterministic(unrestored=("database",))
    def test_connection_left_alone(database, batch):
        batch.sum().item()

    def test_generator(batches):
        next(batches).sum().item()

    def test_late_fixture(request):
        request.getfixturevalue("late")(torch.ones(1, 2)).sum().item()

    def test_fails_by_itself(batch):
        print("printed in one run")
        assert batch.sum().item() == 0

    def test_fails_in_the_second_run(tmp_path_factory):
        marker = tmp_path_factory.getbasetemp() / "marker"
        torch.ones(2).sum().item()
        assert not marker.exists()
        marker.touch()

    def test_broken_fixture(broken):
        torch.ones(2).sum().item()

    def test_broken_teardown(broken_afterwards):
        torch.ones(2).sum().item()

    def test_skipped():
        pytest.skip("not here")

    @pytest.mark.xfail(strict=True)
    def test_expected_to_differ():
        torch.rand(2).sum().item()
"""
CLEAN = [
    "test_fixtures_of_each_scope", "test_effects_are_kept_once", "test_parameters[zeros]", "test_parameters[ones]",
    "test_state_of_class_and_instance", "test_clean", "test_builtin_fixtures", "test_environment_and_folder",
    "test_folder_of_the_last_run", "test_connection_left_alone", "test_late_fixture",
]  # fmt: skip


@pytest.fixture(params=["one process", pytest.param("xdist", marks=pytest.mark.thorough("launching"))])
def fixtures(request: pytest.FixtureRequest, made_once: MadeOnce) -> Session:
    files = {"conftest": CONFTEST, "test_fixtures": FIXTURES}
    # `loadfile`: some of these tests depend on the effects of earlier ones.
    options = ["-n", "2", "--dist", "loadfile"] if request.param == "xdist" else []
    return shared_session(made_once, f"fixtures-{len(options)}", files, *options)


@pytest.mark.parametrize("test", CLEAN)
def test_state_is_restored_between_runs(fixtures: Session, test: str) -> None:
    assert (fixtures.outcome(test), fixtures.verdict(test)) == ("passed", "same"), fixtures.text(test)


def test_a_unittest_class_is_checked(fixtures: Session) -> None:
    assert fixtures.verdict("test_random") == "different"


@pytest.mark.parametrize(("test", "fixture"), [("test_connection", "database"), ("test_generator", "batches")])
def test_state_that_cannot_be_restored_fails_the_test(fixtures: Session, test: str, fixture: str) -> None:
    assert (fixtures.outcome(test), fixtures.verdict(test)) == ("failure", "inconclusive")
    text = fixtures.text(test)
    assert text.startswith(f"Inconclusive: {fixture} is of type ")
    assert f"`{fixture}` is a fixture of scope session" in text
    assert f'unrestored=("{fixture}",)' in text
    assert f"determinism check -- python -m pytest test_fixtures.py::{test}" in text


def test_a_failing_test_fails_as_usual(fixtures: Session) -> None:
    assert fixtures.outcome("test_fails_by_itself") == "failure"
    assert fixtures.verdict("test_fails_by_itself") is None
    assert fixtures.output.count("printed in one run\n") == 1


def test_a_failure_in_only_a_later_run_is_a_difference(fixtures: Session) -> None:
    assert fixtures.verdict("test_fails_in_the_second_run") == "different"
    assert "assert not marker.exists()" in fixtures.text("test_fails_in_the_second_run")
    assert "Different: run 2 of 2 failed, and run 1 passed, from the same state." in fixtures.text(
        "test_fails_in_the_second_run"
    )


def test_a_failing_fixture_is_one_error(fixtures: Session) -> None:
    assert fixtures.outcome("test_broken_fixture") == "error"
    assert fixtures.outcome("test_broken_teardown") == "error"
    assert fixtures.output.count("ERROR at teardown of") == 1


def test_skips_and_expected_failures_work_as_usual(fixtures: Session) -> None:
    assert fixtures.outcome("test_skipped") == "skipped"
    assert fixtures.outcome("test_expected_to_differ") == "skipped"
    assert fixtures.verdict("test_expected_to_differ") == "different"


def test_fixtures_of_wider_scope_cause_no_internal_error(fixtures: Session) -> None:
    assert "INTERNALERROR" not in fixtures.output
    assert fixtures.status == 1


GENERATORS = """
    import pytest, random, torch

    def test_before():
        torch.manual_seed(0)
        random.seed(0)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.deterministic
    @pytest.mark.parametrize("number", range(3))
    def test_unseeded(number):
        torch.rand(1).item()

    def test_after():
        drawn = torch.rand(1).item(), random.random()
        torch.manual_seed(0)
        random.seed(0)
        assert drawn == (torch.rand(4)[3].item(), random.random())
"""


def test_the_next_test_draws_the_same_numbers_as_after_one_run(tmp_path: Path) -> None:
    found = session(project(tmp_path, test_generators=GENERATORS))
    assert found.outcome("test_after") == "passed", found.output
    assert [found.verdict(f"test_unseeded[{number}]") for number in range(3)] == ["different"] * 3
    assert found.status == 0


UNMARKED = """
    import os, torch

    def test_clean():
        torch.manual_seed(0)
        torch.rand(2).sum().item()

    def test_unseeded():
        torch.rand(2).sum().item()

    def test_without_tensors():
        assert os.getcwd()

    def test_with_fixture(determinism):
        assert determinism.check(torch.nn.Linear(2, 2), torch.ones(1, 2)).verdict == "same"
        for name in ("first", "second"):
            with determinism.record(name):
                torch.ones(2).sum().item()
        determinism.compare("first", "second")
        # Other names are those of the module that the argument hides.
        assert determinism.seed(3).master == 3

    def test_fixture_finds_a_difference(determinism):
        determinism.check(lambda: torch.tensor(int.from_bytes(os.urandom(6))).item())

    def test_fixture_compares_what_differs(determinism):
        for name in ("first", "second"):
            with determinism.record(name):
                torch.rand(2).sum().item()
        determinism.compare("first", "second")

    def test_fixture_refuses_names(determinism):
        with determinism.record("../outside"):
            pass
"""


def test_the_option_checks_every_test_on_two_workers(tmp_path: Path) -> None:
    found = session(project(tmp_path, test_unmarked=UNMARKED), "--determinism", "-n", "2")

    assert found.verdict("test_clean") == "same"
    assert (found.outcome("test_unseeded"), found.verdict("test_unseeded")) == ("failure", "different")
    assert (found.outcome("test_without_tensors"), found.verdict("test_without_tensors")) == ("passed", "not checked")
    assert "not checked: 1, tests that ran no op of a framework" in found.output
    assert found.outcome("test_with_fixture") == "passed"


def test_without_marker_or_option_tests_run_once_and_the_fixture_works(tmp_path: Path) -> None:
    found = session(project(tmp_path, test_unmarked=UNMARKED))

    assert (found.outcome("test_unseeded"), found.properties("test_unseeded")) == ("passed", {})
    assert (found.outcome("test_with_fixture"), found.verdict("test_with_fixture")) == ("passed", "same")
    for test in ("test_fixture_finds_a_difference", "test_fixture_compares_what_differs"):
        assert (found.outcome(test), found.verdict(test)) == ("failure", "different")
        assert "Different: " in found.text(test)
    assert "'../outside', which is not a file name" in found.text("test_fixture_refuses_names")


GOLDEN = """
    import pytest, random, torch

    @pytest.mark.parametrize(("name", "rate"), [("kept", 0.1), ("changed", RATE)])
    def test_training(determinism, name, rate):
        with determinism.same_as_golden(f"goldens/{name}.golden"):
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), rate)
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
"""


def test_a_golden_is_written_on_request_and_compared_afterwards(tmp_path: Path) -> None:
    golden = tmp_path / "goldens" / "changed.golden"
    project(tmp_path, test_golden=GOLDEN.replace("RATE", "0.1"))

    missing = session(tmp_path)
    assert missing.outcome("test_training[changed-0.1]") == "failure"
    assert f"There is no golden {golden}" in missing.text("test_training[changed-0.1]")
    assert session(tmp_path, "--determinism-update-goldens").status == 0
    written = golden.read_text()
    assert "pytest test_golden.py::test_training[changed-0.1]" in written

    project(tmp_path, test_golden=GOLDEN.replace("RATE", "0.2"))
    compared = session(tmp_path)
    kept, changed = "test_training[kept-0.1]", "test_training[changed-0.2]"
    assert (compared.outcome(kept), compared.verdict(kept)) == ("passed", "same"), compared.output
    assert (compared.outcome(changed), compared.verdict(changed)) == ("failure", "different")
    assert "Different from the golden: the parameters differ at step 0" in compared.text(changed)
    assert golden.read_text() == written


def test_when_the_whole_session_is_checked_each_test_runs_once(tmp_path: Path) -> None:
    text = """
        import pytest, torch

        @pytest.mark.deterministic
        def test_counted():
            print("ran", torch.ones(2).sum().item())
    """
    project(tmp_path, test_recorded=text)
    command = ["-m", "determinism", "check", "--", sys.executable, "-m", "pytest", "-q", "-s"]
    finished = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=600)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("ran 2.0") == 1
    assert "not checked: 1, tests that were run once, since this whole session is recorded already" in finished.stdout


def test_an_interrupt_ends_the_session_and_leaves_no_temporary_folder(tmp_path: Path) -> None:
    text = """
        import time
        import pytest, torch

        @pytest.mark.deterministic
        def test_long():
            torch.ones(2).sum().item()
            open("begun", "w").close()
            time.sleep(60)
    """
    project(tmp_path, test_long=text)
    (tmp_path / "temporary").mkdir()
    program = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while not (tmp_path / "begun").exists():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=600)

    assert program.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in output and "INTERNALERROR" not in output
    assert not [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith("determinism-")]


DRAWN_BEFORE = """
    import pytest
    import torch

    class TestDrawn:
        def setup_method(self):
            self.model = torch.nn.Linear(4, 4)

        @pytest.mark.deterministic
        def test_unread(self):
            assert self.model(torch.ones(1, 4)).shape == (1, 4)

        @pytest.mark.deterministic
        def test_read(self):
            self.model(torch.ones(1, 4)).sum().item()

    @pytest.mark.deterministic
    def test_no_fixture():
        torch.tensor(len(str(id(object()))) + id(object()) / 7).item()
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_a_setup_method_draws_is_explained_without_a_line_of_pytest(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION)
    (tmp_path / "test_drawn.py").write_text(textwrap.dedent(DRAWN_BEFORE))
    found = session(tmp_path, *options)
    assert found.verdict("test_unread") == found.verdict("test_read") == "different"
    assert "line" not in found.properties("test_unread")
    assert "random numbers differ" in found.text("test_unread")
    assert found.properties("test_read")["line"].endswith("test_drawn.py:15")
    assert "seed there: before each run" in found.text("test_read")
    assert "seed there" not in found.text("test_no_fixture")

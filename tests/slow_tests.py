"""Slow tests, and the commits at which they are run.

    python -m tests.slow_tests

measures the tests that are run at this commit again, in all environments (about 40 minutes), and writes `slow_tests.tsv`: the processor
seconds of each test that took `LEAST` or more, including the processes that it started. These tests are dealt into `TURNS` hands of about
equal duration, and each commit plays one hand; a part of the thorough tests runs the rest. So the tests that are always run stay short,
whatever is added, and each hand has tests of every kind.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.thorough import ROOT

STORED = Path(__file__).with_suffix(".tsv")
LEAST = 1.0
TURNS = 12
ALWAYS = "tests/architecture/"
"""These tests are run at each commit: they examine all of the code, so any change may break them, which must show at once."""
PARTS = {"torch": "slow", "tensorflow": "tensorflow", "jax": "jax", "integrations": "trainers"}
"""For each framework, the part of the thorough tests that runs the slow tests not run at this commit."""
VARIABLE = "DETERMINISM_TEST_SECONDS"
"""The environment variable with the file to which this module, as a pytest plugin, appends the seconds of each passed test."""
_HAS_PASSED = pytest.StashKey[bool]()


def stored_seconds(file: Path = STORED) -> dict[str, float]:
    """Return the seconds of each slow test, by its id."""
    rows = (line.split("\t", 1) for line in file.read_text(encoding="utf-8").splitlines())
    return {name: float(seconds) for seconds, name in rows}


def dealt(seconds: Mapping[str, float], hands: int = TURNS) -> dict[str, int]:
    """Return the hand of each test: the longest is dealt first, each to the hand with the fewest seconds.

    Args:
        seconds: The seconds of each test.
        hands: The number of hands.
    """
    held = [0.0] * hands
    hand_of = {}
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        hand_of[name] = hand = held.index(min(held))
        held[hand] += seconds[name]
    return hand_of


@cache
def hands() -> dict[str, int]:
    """Return the hand of each slow test, by its id."""
    return dealt(stored_seconds())


def merged(stored: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds to be stored after measuring; tests that were not run keep their previous ones.

    Args:
        stored: The seconds stored before.
        measured: The seconds of each test that was just run.
    """
    both = {**stored, **measured}
    return {name: both[name] for name in sorted(both) if both[name] >= LEAST and not name.startswith(ALWAYS)}


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    # Not reached if the test was skipped or failed; its usual duration is then unknown.
    item.stash[_HAS_PASSED] = True
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _processor_seconds()
    result = yield
    if item.stash.get(_HAS_PASSED, False):
        # Write each line with a single call, since the workers of pytest-xdist share the file.
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(f"{_processor_seconds() - began:.1f}\t{item.nodeid}\n")
    return result


def main() -> None:
    """Measure, and write the stored seconds."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "seconds.tsv"
        measured.touch()
        for framework in PARTS:
            environment = ROOT / (".venv" if framework == "torch" else f".venv-{framework}")
            command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-p", "tests.slow_tests", "-n", "2"]
            asked = {**os.environ, "DETERMINISM_TEST_FRAMEWORKS": framework, VARIABLE: str(measured)}
            subprocess.run(command, cwd=ROOT, env=asked, check=False)
        found = merged(stored_seconds(), stored_seconds(measured))
    STORED.write_text("".join(f"{seconds:.1f}\t{name}\n" for name, seconds in found.items()), encoding="utf-8")


if __name__ == "__main__":
    main()

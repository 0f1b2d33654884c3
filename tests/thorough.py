"""The slow tests, in parts of at most half an hour: what each part runs, how long it takes, and which tests are always run.

    python -m tests.thorough [PART ...]

Without arguments all parts are run, one after the other; a prefix of several parts, such as `causes`, means all of these.
`make thorough PART=causes` calls it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

VARIABLE = "DETERMINISM_TEST_THOROUGH"
"""The environment variable with the parts to run, separated by commas."""
ROOT = Path(__file__).resolve().parents[1]


class Part(NamedTuple):
    """Tests that `make test` leaves out."""

    about: str
    minutes: int
    """Its duration on two cores, rounded up."""
    framework: str = "torch"
    command: tuple[str, ...] | None = None
    """A command that is run instead of the tests marked with the part's name; paths are relative to the repository."""


PARTS: dict[str, Part] = {
    "causes-seeding": Part(
        "programs whose seeds are missing, late or different in each run: the cause, its line and a fix", 20
    ),
    "causes-order": Part("programs that depend on an order: the cause, its line and a fix", 25),
    "causes-others": Part("programs with other causes, from memory to files: the cause, its line and a fix", 30),
    "causes-planted": Part("ten programs of each class of cause that is hard to name", 30),
    "causes-twins": Part("the deterministic twins of those programs", 20),
    "causes-controls": Part("deterministic programs that look nondeterministic: no cause is named", 10),
    "programs": Part(
        "threads, children, ranks, loaders, compilers, trainings: clean programs are the same, faults are named", 30
    ),
    "kinds": Part("more programs of each kind of divergence, with evidence", 10),
    "launching": Part("starting and interrupting programs, and making them deterministic, with PyTorch", 15),
    "probes": Part("more sources of each sort at their lines, and the fixes of code for them", 10),
    "resume-and-batch": Part("check-resume, check-batch and audit on more programs", 15),
    "invariants": Part("invariants within one run: violations are named, and clean programs have none", 10),
    "bisect": Part("finding the commit that changed the results, in twenty histories", 15),
    "slow": Part("the slow tests with PyTorch; `make test` runs each at one of twelve commits", 30),
    "samples": Part(
        "every op of PyTorch's samples: recorded without being disturbed, patched with the results of stock", 15
    ),
    "legacy": Part(
        "tensorflow-determinism with TensorFlow 1.14 to 2.7",
        15,
        command=("legacy/tensorflow-determinism/run_tests.py",),
    ),
    "long-runs": Part(
        "a difference planted in step 61,803 of 100,000 is narrowed to its line and cause, from a checkpoint",
        20,
        command=("benchmarks/narrowing.py", "--how", "checkpoint"),
    ),
    "tensorflow": Part("TensorFlow's strategies, fixes and ops", 11, "tensorflow"),
    "jax": Part("JAX on more programs", 5, "jax"),
    "trainers": Part(
        "trainings with Lightning, Hugging Face and Ignite: with workers, and under the commands", 5, "integrations"
    ),
}


def requested_parts() -> list[str]:
    """Return the requested parts; none in an ordinary run."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


@cache
def commit() -> str:
    """Return the hash of the commit that is checked out; zeros if there is no repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "0" * 40
    return done.stdout.strip()


def is_turn(number: int, turns: int) -> bool:
    """Whether the tests with this number are run at this commit, if `turns` numbers take turns from commit to commit."""
    return number % turns == int(commit()[:8], 16) % turns


def in_turns(values: Iterable[Any], turns: int, part: str, name: Callable[[Any], str] | None = None) -> list[Any]:
    """Return the parameters of a test: one in `turns` is run at this commit, and a part of the thorough tests runs the rest.

    Args:
        values: The values of the parameter; these may be `pytest.param`.
        turns: How many values take turns.
        part: The part of the thorough tests that the others belong to.
        name: Returns the id of a value.
    """
    parameters = []
    for number, value in enumerate(values):
        given = value if hasattr(value, "marks") else pytest.param(value, id=name and name(value))
        marks = [] if is_turn(number, turns) else [pytest.mark.thorough(part)]
        parameters.append(pytest.param(*given.values, id=given.id, marks=[*given.marks, *marks]))
    return parameters


def chosen_parts(words: Sequence[str]) -> list[str]:
    """Return the parts whose names begin with one of the words; all parts if there are no words.

    Raises:
        ValueError: No part begins with a word.
    """
    for word in words:
        if not any(name.startswith(word) for name in PARTS):
            raise ValueError(f"No part begins with {word!r}; there are {', '.join(PARTS)}.")
    return [name for name in PARTS if not words or any(name.startswith(word) for word in words)]


def table(names: Sequence[str]) -> list[str]:
    """Return a row for each part, and the total."""
    rows = [f"{name:<20}{PARTS[name].minutes:>4} min  {PARTS[name].about}" for name in names]
    return [*rows, f"{'together':<20}{sum(PARTS[name].minutes for name in names):>4} min"]


def run_part(name: str, workers: str) -> int:
    """Run one part and return the exit status."""
    part = PARTS[name]
    environment = ROOT / (".venv" if part.framework == "torch" else f".venv-{part.framework}")
    if part.framework != "torch":
        subprocess.run(["make", "--no-print-directory", f"{environment.name}/.installed"], cwd=ROOT, check=True)
    python = str(environment / "bin" / "python")
    # Tests that need no framework are run in PyTorch's environment.
    folders = ("tests",) if part.framework == "torch" else ("tests/adapters", "tests/e2e", "tests/integrations")
    tests = ("-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", *folders)
    variables = {"DETERMINISM_TEST_FRAMEWORKS": part.framework, VARIABLE: name}
    return subprocess.run(
        [python, *(part.command or tests)],
        cwd=ROOT,
        env={**os.environ, **(variables if part.command is None else {})},
        check=False,
    ).returncode


def main(words: Sequence[str]) -> int:
    """Print the parts, run them, and print the outcomes."""
    try:
        names = chosen_parts(words)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*table(names), sep="\n", flush=True)
    outcomes = []
    for name in names:
        print(f"\n{name}: {PARTS[name].about}", flush=True)
        started = time.monotonic()
        status = run_part(name, os.environ.get("WORKERS", "3"))
        outcomes.append((name, status, (time.monotonic() - started) / 60))
    print(
        "",
        *(f"{name:<20}{minutes:>6.1f} min  {'failed' if status else 'passed'}" for name, status, minutes in outcomes),
        sep="\n",
    )
    return int(any(status for _, status, _ in outcomes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

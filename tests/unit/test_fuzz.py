"""Reading a trace with damaged files ends soon, with a verdict or a message, and never with a false "same"."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from determinism.trace import writer
from tests import fuzz

MUTATIONS = 150
"""`make fuzz` makes a hundred thousand."""


def test_damaged_traces_end_with_a_verdict_or_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a batch would be written whenever a second has passed, and the same damage end differently.
    monkeypatch.setattr(writer, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: 0.0}))
    seeds = (f"test:{number}" for number in range(MUTATIONS))
    counts: Counter[str] = Counter()
    wrong = []
    for seed, outcome, problem in fuzz.outcomes(seeds, tmp_path, workers=2):
        counts[outcome] += 1
        if problem is not None:
            wrong.append(f"python -m tests.fuzz --only {seed}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert sum(counts.values()) == MUTATIONS
    # All outcomes occurred, so the mutations are neither all fatal nor all harmless.
    assert all(
        counts[outcome] >= MUTATIONS // 100 for outcome in ("compare 0", "compare 1", "compare 2", "show 0", "show 2")
    )


@pytest.fixture
def sandbox(tmp_path: Path) -> object:
    here = os.getcwd()
    yield fuzz.Sandbox(tmp_path / "sandbox", fuzz.make_corpus(tmp_path / "corpus"))
    os.chdir(here)


def test_the_same_seed_makes_the_same_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a batch would be written whenever a second has passed.
    monkeypatch.setattr(writer, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: 0.0}))
    folders = [tmp_path / "first", tmp_path / "second"]
    corpora = [fuzz.make_corpus(folder) for folder in folders]
    assert [_contents(one) for one in corpora[0]] == [_contents(one) for one in corpora[1]]


def test_a_false_same_would_be_found(sandbox: fuzz.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def say_same(*arguments: object, **options: object) -> None:
        print("Same: 1 record was bit-identical in 2 runs")

    for name in ("compare", "show"):
        monkeypatch.setattr(fuzz.command().commands[name], "callback", say_same)
    problems = [sandbox.outcome_of(f"planted:{number}")[1] for number in range(60)]
    assert any(problem is not None and "of other content" in problem for problem in problems)


def test_a_defect_would_be_found(sandbox: fuzz.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    for name in ("compare", "show"):
        monkeypatch.setattr(fuzz.command().commands[name], "callback", fail)
    assert "ZeroDivisionError" in str(sandbox.outcome_of("planted")[1])


def test_memory_of_the_starting_process_is_not_counted(tmp_path: Path) -> None:
    held = bytearray(fuzz.MOST_BYTES + (64 << 20))
    held[::4096] = b"x" * len(held[::4096])
    ((_, _, problem),) = fuzz.outcomes(iter(["test:0"]), tmp_path, workers=1)
    assert problem is None
    assert len(held) > fuzz.MOST_BYTES


@pytest.mark.parametrize("mutation", dict.fromkeys(fuzz.MUTATIONS), ids=lambda mutation: mutation.__name__)
def test_each_mutation_changes_something(mutation: object, tmp_path: Path) -> None:
    corpus = fuzz.make_corpus(tmp_path / "corpus")
    changed = 0
    for number in range(20):
        chance = random.Random(number)
        original, damaged = chance.choice(corpus), tmp_path / "damaged"
        shutil.copytree(original, damaged)
        mutation(chance, damaged, corpus)  # type: ignore[operator]
        changed += _contents(original) != _contents(damaged)
        shutil.rmtree(damaged)
    assert changed > 5


def _contents(trace: Path) -> dict[str, object]:
    paths = (path for path in trace.rglob("*"))
    return {
        str(path.relative_to(trace)): path.read_bytes()
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24
        else path.lstat().st_mode
        for path in paths
    }

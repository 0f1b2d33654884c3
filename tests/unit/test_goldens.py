"""Goldens: how a run is stored, and where another run deviates from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from determinism import golden
from determinism.errors import DeterminismError, DifferenceError, TraceError, UsageError
from determinism.golden.bisect import BisectResult, ChangedLine, Commit, answer_lines
from determinism.golden.launch import first_difference, operation_digests
from determinism.golden.ledger import MOST_BYTES, Ledger, ledger_of, read_golden, text_of
from determinism.golden.result import answer, compare_ledgers
from determinism.trace.opening import open_trace
from determinism.trace.schema import END_OP, Meaning
from determinism.types import Role, Verdict
from tests.traces import TraceBuilder, process_of

ENVIRONMENT = {
    "processor": "Xeon", "package torch": "2.13.0", "working directory": "/home/ada/project", "variable CUDA_HOME": "/opt/cuda",
    "platform": "Linux-6.1.2-x86_64-with-glibc2.36",
}  # fmt: skip


def training(
    folder: Path,
    steps: int = 3,
    *,
    changed_at: int = 99,
    weights: tuple[str, ...] = ("a.weight", "a.bias"),
    changed: tuple[str, ...] = ("a.weight",),
    draws: str = "seed",
    ranks: int = 1,
    environment: dict[str, str] | None = None,
) -> Path:
    """Record a training run at level step; from step `changed_at` on, some weights have different values."""
    facts = {"level": "step", "environment": environment or ENVIRONMENT, "settings": {"torch.get_num_threads()": "2"}}
    first = TraceBuilder(folder, command=("/usr/bin/python", "train.py"), stream="process", framework="torch", **facts)
    processes = [first, *(first.beside(f"main.rank-{rank}", stream="process", **facts) for rank in range(1, ranks))]
    for process in processes:
        for step in range(steps):
            process.add("determinism::batch", outputs=[f"batch {step}"], role=Role.BATCH)
            is_changed = step >= changed_at
            process.add(
                "determinism::loss", outputs=[f"loss {step} {is_changed and step > changed_at}"], role=Role.LOSS
            )
            process.number(Meaning.LOSS, 0.5 + step)
            for name in weights:
                value = f"{name.rpartition('.')[2]} {step} {is_changed and name in changed}"
                process.add("determinism::parameter", outputs=[value], role=Role.HELD, arguments=name)
            process.add("determinism::step", outputs=(), role=Role.STATE, generators=[f"{draws} {step}", "unused"])
            process._step += 1
    return first.close()


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Path]:
    """A function that records training runs, each in its own folder."""
    count = iter(range(99))
    return lambda *args, **options: training(tmp_path / f"run-{next(count)}", *args, **options)


def stored(train: Callable[..., Path], tmp_path: Path, **options: object) -> Path:
    """The golden of a training run."""
    path = tmp_path / "train.golden"
    golden.create(train(**options), path)
    return path


def test_a_run_is_the_same_as_its_golden(train: Callable[..., Path], tmp_path: Path) -> None:
    found = golden.compare(train(), stored(train, tmp_path))
    assert (found.verdict, found.steps, found.difference) == (Verdict.SAME, 3, None)
    assert answer(found) == ["Same: 3 steps as in the golden"]
    found.raise_if_different()


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_first_step_group_and_tensor_that_differ_are_named(
    train: Callable[..., Path], tmp_path: Path, step: int
) -> None:
    found = golden.compare(train(changed_at=step), stored(train, tmp_path))
    assert found.verdict is Verdict.DIFFERENT
    assert found.difference is not None
    assert (found.difference.step, found.difference.group) == (step, "parameters")
    # The golden has no fingerprints of later steps.
    assert found.difference.tensors == (("a.weight",) if step == 0 else ())
    with pytest.raises(DifferenceError, match=f"the parameters differ at step {step}"):
        found.raise_if_different()


def test_renamed_and_reordered_parameters_are_the_same(train: Callable[..., Path], tmp_path: Path) -> None:
    renamed = train(weights=("b.bias", "b.weight"))
    assert golden.compare(renamed, stored(train, tmp_path)).verdict is Verdict.SAME


def test_more_or_fewer_steps_differ(train: Callable[..., Path], tmp_path: Path) -> None:
    path = stored(train, tmp_path)
    for steps in (2, 4):
        found = golden.compare(train(steps), path)
        assert found.difference is not None
        assert (found.difference.group, found.difference.expected, found.difference.found) == ("steps", "3", str(steps))


def test_the_state_of_a_generator_counts_only_if_steps_draw_from_it(train: Callable[..., Path], tmp_path: Path) -> None:
    path = stored(train, tmp_path)
    assert read_golden(path).processes[0].generators == (0,)
    found = golden.compare(train(draws="other seed"), path)
    assert found.difference is not None
    assert found.difference.group == "generators"


def test_each_process_has_a_section(train: Callable[..., Path], tmp_path: Path) -> None:
    path = stored(train, tmp_path, ranks=3)
    assert [process.key for process in read_golden(path).processes] == ["main", "main.rank-1", "main.rank-2"]
    assert golden.compare(train(ranks=3), path).verdict is Verdict.SAME
    missing = golden.compare(train(ranks=2), path).difference
    assert missing is not None
    assert (missing.process, missing.group) == ("main.rank-2", "process")


def test_a_different_machine_is_distinguished_from_a_changed_program(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    path = stored(train, tmp_path)
    here = golden.compare(train(changed_at=1), path)
    assert here.environment == ()
    assert "so the program or its data changed" in "\n".join(answer(here))
    path.write_text(path.read_text(encoding="utf-8").replace("Xeon", "EPYC"), encoding="utf-8")
    elsewhere = golden.compare(train(changed_at=1), path)
    assert elsewhere.environment == (("processor", "EPYC", "Xeon"),)
    assert "processor: EPYC in the golden, Xeon now" in "\n".join(answer(elsewhere))
    assert golden.compare(train(), path).verdict is Verdict.SAME


def test_a_golden_contains_no_local_paths(train: Callable[..., Path], tmp_path: Path) -> None:
    text = stored(train, tmp_path).read_text(encoding="utf-8")
    assert "command = python train.py" in text
    assert "platform = Linux glibc2.36" in text
    assert not any(word in text for word in ("/usr", "/home", "/opt", "6.1.2", str(tmp_path)))


def test_a_golden_of_twenty_steps_takes_at_most_five_kilobytes(train: Callable[..., Path]) -> None:
    weights = tuple(f"layer{number}.weight" for number in range(500))
    ledger = ledger_of(open_trace(train(20, weights=weights)))
    process = replace(ledger.processes[0], operations=[f"{number:032x}" for number in range(5000)])
    text = text_of(replace(ledger, processes=[process]))
    assert 4000 < len(text.encode()) <= MOST_BYTES
    assert "ops per digest = 1\n" not in text


def test_reading_a_golden_returns_what_was_written(train: Callable[..., Path], tmp_path: Path) -> None:
    ledger = ledger_of(open_trace(train(ranks=2)))
    process = replace(ledger.processes[0], operations=[f"{number:032x}"[::-1] for number in range(30)])
    path = tmp_path / "golden"
    path.write_text(text_of(replace(ledger, processes=[process, *ledger.processes[1:]])), encoding="utf-8")
    read = read_golden(path)
    assert compare_ledgers(read, ledger).verdict is Verdict.SAME
    assert read.environment == ledger.environment
    assert read.settings == ledger.settings
    assert len(read.processes[0].operations) == 30
    assert text_of(read) == path.read_text(encoding="utf-8")


def test_an_existing_golden_is_replaced_only_on_request(train: Callable[..., Path], tmp_path: Path) -> None:
    path = stored(train, tmp_path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="--update"):
        golden.create(train(changed_at=1), path)
    assert path.read_bytes() == before
    golden.create(train(changed_at=1), path, update=True)
    assert path.read_bytes() != before
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_an_op_level_trace_is_refused(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run", stream="process")
    build.add("aten::add")
    with pytest.raises(UsageError, match="--level step"):
        golden.create(build.close(), tmp_path / "golden")


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run", stream="process", level="step")
    build.step(name=END_OP)
    with pytest.raises(UsageError, match="no batch and no state"):
        golden.create(build.close(), tmp_path / "golden")


def edited(text: str, old: str, new: str) -> str:
    """The text with the first occurrence of `old` replaced."""
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("determinism.golden/1", "determinism.golden/2", "Update `determinism`"),
        ("determinism.golden/1", "{}", "is not a golden"),
        ("[environment]", "<<<<<<< HEAD\n[environment]", "merge conflict"),
        ("[environment]", "", "is damaged at line"),
        ("[settings]", "", "is damaged at"),
        ("steps = -", "steps = many", "'many' is not a count"),
        ("generators = 0", "", "'generators' is missing"),
        ("\n1 ", "\n7 ", "step 1 with"),
        ("[process main]", "[proc main]", "is damaged at line"),
        ("step batches", "step ", "the names of the columns were expected"),
        (" 1.5\n", " one\n", "'one' is not a number"),
        ("[parameters of main, step 0]\n", "[parameters of main, step 0]\nxyz ", "'xyz' is not a digest"),
    ],
)
def test_a_damaged_golden_is_refused_with_its_line(
    train: Callable[..., Path], tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = stored(train, tmp_path)
    path.write_text(edited(path.read_text(encoding="utf-8"), old, new), encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        read_golden(path)


def test_every_prefix_of_a_golden_is_read_or_refused(train: Callable[..., Path], tmp_path: Path) -> None:
    path = stored(train, tmp_path)
    whole = path.read_bytes()
    refused = 0
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        try:
            assert isinstance(read_golden(path), Ledger)
        except DeterminismError:
            refused += 1
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="cannot be read"):
        read_golden(path)
    assert refused > 10


def ops(folder: Path, *values: str) -> Path:
    """Record ops that return these values, each on its own line."""
    build = TraceBuilder(folder, stream="process")
    for line, value in enumerate(values, start=1):
        build.add("aten::add", outputs=[value], site=("/work/train.py", line))
    build.step()
    return build.close()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("values", "line"),
    [
        (("a", "b", "c", "d", "e"), None),
        (("a", "b", "x", "d", "e"), 3),
        (("a", "b", "x", "y", "z"), 3),
        (("a", "b", "c", "d", "e", "f"), 6),
        (("a", "b", "x", "c", "d", "e"), 3),
    ],
)
def test_the_first_op_with_a_different_value_is_found(
    tmp_path: Path, values: tuple[str, ...], line: int | None, size: int
) -> None:
    from determinism.golden.ledger import grouped_digests

    first = process_of(ops(tmp_path / "golden", "a", "b", "c", "d", "e"))
    kept = [text[:5] for text in grouped_digests(operation_digests(first), size)]
    place = first_difference(process_of(ops(tmp_path / "now", *values)), kept, size)
    if line is None:
        assert place is None
        return
    assert place is not None
    assert place.frame is not None
    until = place.until or place.frame
    assert place.frame.line <= line <= until.line
    assert until.line - place.frame.line < size


@pytest.mark.parametrize(
    ("changed", "left_out"), [(5, None), (6, None), (7, "and 1 more lines"), (9, "and 3 more lines")]
)
def test_at_most_six_lines_of_a_large_commit_are_shown(changed: int, left_out: str | None) -> None:
    commit = Commit("ab" * 20, "Train longer", "2026-11-01")
    lines = tuple(ChangedLine("train.py", number, f"+step({number})") for number in range(changed))
    text = answer_lines(BisectResult((commit,), (), lines=lines))
    assert sum("train.py" in line for line in text) == min(changed, 6)
    assert [line for line in text if "more lines" in line] == (
        [] if left_out is None else [f"  {left_out}: git show {commit.short}"]
    )

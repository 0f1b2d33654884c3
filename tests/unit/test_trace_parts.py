"""A run that was recorded in parts is read as one trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from determinism.comparison.runs import compare
from determinism.errors import DeterminismError
from determinism.trace.files import create_trace
from determinism.trace.opening import open_trace, part_folder
from determinism.types import Role, Verdict
from tests.streams import first_of
from tests.traces import TraceBuilder


def train(builder: TraceBuilder, value: str) -> None:
    made = builder.add("aten::mul", outputs=[value], site=("/work/fit.py", 1))
    builder.add("determinism::tolist", [made], [value], role=Role.ESCAPE)


def part(run: Path, name: str, key: str, value: str = "value", *, exit_status: int = 0, **description: object) -> None:
    """Write a part with one process and its threads."""
    builder = TraceBuilder(part_folder(run, name), key=key, **description)
    train(builder, value)
    threads = builder.beside(f"{key}.threads", stream="threads", part_of=key, threads=["log"])
    threads.thread = 1
    train(threads, "logged")
    builder.close(exit_status=exit_status)


def keys(run: Path) -> list[tuple[str, str | None]]:
    return [(process.key, process.description.get("part_of")) for process in open_trace(run).processes]


def test_a_rank_keeps_its_key_and_other_keys_include_the_part(tmp_path: Path) -> None:
    part(tmp_path, "a", "main.rank-0")
    part(tmp_path, "b", "main.rank-1")
    part(tmp_path, "c", "main")
    assert keys(tmp_path) == [
        ("c/main", None),
        ("c/main.threads", "c/main"),
        *((key, of) for rank in (0, 1) for key, of in ((f"main.rank-{rank}", None), (f"main.rank-{rank}.threads", f"main.rank-{rank}"))),
    ]  # fmt: skip


def test_keys_of_ranks_in_two_groups_include_the_part(tmp_path: Path) -> None:
    part(tmp_path, "a", "main.rank-0")
    part(tmp_path, "b", "main.rank-0")
    assert [key for key, of in keys(tmp_path) if of is None] == ["a/main.rank-0", "b/main.rank-0"]


def test_it_does_not_matter_which_machine_ran_a_rank(tmp_path: Path) -> None:
    for run, machines in (("1", "ab"), ("2", "ba")):
        for rank, machine in enumerate(machines):
            part(tmp_path / run, machine, f"main.rank-{rank}", f"of rank {rank}")
    assert compare(tmp_path / "1", tmp_path / "2").verdict is Verdict.SAME


@pytest.mark.parametrize("key", ["main.rank-1", "main"])
def test_the_process_of_a_part_that_differs_is_named(tmp_path: Path, key: str) -> None:
    for run in ("1", "2"):
        part(tmp_path / run, "a", key.replace("1", "0"))
        part(tmp_path / run, "b", key, f"of run {run}")
    first = first_of(compare(tmp_path / "1", tmp_path / "2"))
    assert first.process == {"main": "b/main"}.get(key, key)


def test_siblings_are_paired_within_their_part(tmp_path: Path) -> None:
    for run, programs in (("1", ["fit", "score"]), ("2", ["score", "fit"])):
        for name in "ab":
            builder = TraceBuilder(part_folder(tmp_path / run, name), argv=[programs[0]])
            train(builder, f"{programs[0]} of {name}")
            train(builder.beside("main-2", argv=[programs[1]]), f"{programs[1]} of {name}")
            builder.close()
    assert compare(tmp_path / "1", tmp_path / "2").verdict is Verdict.SAME


def test_a_run_failed_if_a_part_did(tmp_path: Path) -> None:
    for run in ("1", "2"):
        part(tmp_path / run, "a", "main.rank-0")
        part(tmp_path / run, "b", "main.rank-1", exit_status=3)
    comparison = compare(tmp_path / "1", tmp_path / "2")
    assert [trouble.identifier for trouble in comparison.trouble] == ["runs-failed"]
    assert [run.exit_status for run in comparison.runs] == [3, 3]


def test_a_part_that_still_runs_leaves_the_run_unfinished(tmp_path: Path) -> None:
    for run in ("1", "2"):
        part(tmp_path / run, "a", "main.rank-0")
        create_trace(part_folder(tmp_path / run, "b"), command=["program"])
    trouble = compare(tmp_path / "1", tmp_path / "2").trouble
    assert [one.identifier for one in trouble] == ["run-unfinished"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([2, 2], []),
        ([4, 4], [("ranks 2 to 3", 2)]),
        ([None, None], []),
        ([3, None], [("rank 2", 1)]),
        ([2000, 2000], [("ranks 2 to 1999", 1998)]),
    ],
)
def test_ranks_that_recorded_nothing_are_a_blind_spot(
    tmp_path: Path, sizes: Sequence[int | None], expected: list[tuple[str, int]]
) -> None:
    for run in ("1", "2"):
        for rank, size in enumerate(sizes):
            part(tmp_path / run, f"machine-{rank}", f"main.rank-{rank}", world_size=size)
    comparison = compare(tmp_path / "1", tmp_path / "2")
    assert comparison.verdict is Verdict.SAME
    assert [(spot.what, spot.count) for spot in comparison.recorded.blind_spots] == expected


def _a_part_is_missing(folder: Path) -> None:
    part(folder / "1", "a", "main.rank-0")
    part(folder / "1", "b", "main.rank-1")
    part(folder / "2", "a", "main.rank-0")


def _one_run_is_whole(folder: Path) -> None:
    part(folder / "1", "a", "main")
    whole = TraceBuilder(folder / "2")
    train(whole, "value")
    whole.close()


def _steps_differ(folder: Path) -> None:
    for run in ("1", "2"):
        for name, steps in (("a", 3), ("b", None)):
            create_trace(part_folder(folder / run, name), command=["program"], steps=steps)


@pytest.mark.parametrize(
    ("write", "identifier", "words"),
    [
        (_a_part_is_missing, "parts-differ", "run 1 has 2 parts (a, b) and run 2 has 1 part (a)"),
        (_one_run_is_whole, "parts-differ", "run 1 has 1 part (a) and run 2 has no parts"),
        (_steps_differ, "steps-differ", "(all steps, --steps 3)"),
    ],
)
def test_mismatched_parts_are_refused(
    tmp_path: Path, write: Callable[[Path], None], identifier: str, words: str
) -> None:
    write(tmp_path)
    with pytest.raises(DeterminismError) as raised:
        compare(tmp_path / "1", tmp_path / "2")
    assert raised.value.identifier == identifier and words in raised.value.message


@pytest.mark.parametrize("name", ["", "../elsewhere", "a.b", "a" * 65, "-a"])
def test_an_invalid_name_of_a_part_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeterminismError) as raised:
        part_folder(tmp_path, name)
    assert raised.value.identifier == "part-name" and repr(name) in raised.value.message


def test_a_whole_run_cannot_get_parts(tmp_path: Path) -> None:
    TraceBuilder(tmp_path / "run").close()
    with pytest.raises(DeterminismError) as raised:
        part_folder(tmp_path / "run", "a")
    assert raised.value.identifier == "output-exists"

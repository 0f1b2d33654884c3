"""Shards on other ranks and tensors in files, on traces that are written record by record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determinism.invariants.findings import FILES, SHARDS, InvariantFindings
from determinism.invariants.launch import check_stored
from determinism.trace.schema import GATHERED_OP, LOADED_OP, SAVED_OP
from tests.traces import Ref, TraceBuilder, layout


def gathered(folder: Path, *ranks: tuple[str, str, str], dtype: str = "float32") -> InvariantFindings:
    """Check a run in which each rank keeps a shard and gathered these parts of the whole."""
    first = TraceBuilder(folder / "run", key="main.rank-0")
    processes = [first, *(first.beside(f"main.rank-{rank}") for rank in range(1, len(ranks)))]
    said = json.dumps({"name": "w", "ranks": list(range(len(ranks)))})
    for process, (shard, *parts) in zip(processes, ranks, strict=True):
        given = [Ref(-1, digest=shard), *(Ref(-1, digest=part, layout=layout(4, dtype=dtype)) for part in parts)]
        process.add(GATHERED_OP, given, (), arguments=said)
    return check_stored(first.close())


def test_gathered_parts_that_match_the_shards_are_not_reported(tmp_path: Path) -> None:
    findings = gathered(tmp_path, ("a", "a", "b"), ("b", "a", "b"))

    assert (findings.violations, findings.compared[SHARDS]) == ([], 1)


def test_a_rank_with_a_different_part_is_named(tmp_path: Path) -> None:
    (violation,) = gathered(tmp_path, ("a", "a", "b"), ("b", "x", "b")).violations

    assert (violation.invariant, violation.ranks, violation.others) == (SHARDS, (1,), (0,))


@pytest.mark.parametrize(("part", "violations"), [("lower", 0), ("x", 1)])
def test_with_mixed_precision_gathered_parts_are_compared_between_ranks(
    part: str, violations: int, tmp_path: Path
) -> None:
    findings = gathered(tmp_path, ("a", "lower", "b"), ("b", part, "b"), dtype="bfloat16")

    assert len(findings.violations) == violations


def saved(process: TraceBuilder, op: str, value: str, file: str = "/c.pt") -> None:
    """Add a record that saves one tensor to a file, or loads it."""
    process.add(op, (Ref(-1, digest=value),), (), arguments=json.dumps({"file": file, "names": ["w"]}))


@pytest.mark.parametrize(
    ("events", "violations", "compared"),
    [
        pytest.param([(SAVED_OP, "a"), (LOADED_OP, "a")], 0, 1, id="the same"),
        pytest.param([(SAVED_OP, "a"), (LOADED_OP, "b")], 1, 1, id="something else"),
        pytest.param([(SAVED_OP, "a"), (SAVED_OP, "b"), (LOADED_OP, "a")], 1, 1, id="an older one"),
        pytest.param([(LOADED_OP, "a"), (SAVED_OP, "b")], 0, 0, id="of an earlier run"),
    ],
)
def test_a_loaded_file_must_match_the_last_save(
    events: list[tuple[str, str]], violations: int, compared: int, tmp_path: Path
) -> None:
    process = TraceBuilder(tmp_path / "run")
    for op, value in events:
        saved(process, op, value)

    findings = check_stored(process.close())

    assert (len(findings.violations), findings.compared[FILES]) == (violations, compared)


@pytest.mark.parametrize(
    ("own", "loaded", "violations"),
    [(None, "b", 0), (None, "x", 1), ("a", "b", 1), ("a", "a", 0)],
)
def test_a_loaded_file_must_match_the_save_of_this_process_or_else_of_another(
    own: str | None, loaded: str, violations: int, tmp_path: Path
) -> None:
    process = TraceBuilder(tmp_path / "run", key="main.rank-0")
    other = process.beside("main.rank-1")
    saved(other, SAVED_OP, "b")
    if own is not None:
        saved(process, SAVED_OP, own)
    saved(process, LOADED_OP, loaded)

    assert len(check_stored(process.close()).violations) == violations


def test_damaged_arguments_are_ignored(tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    process.add(SAVED_OP, (Ref(-1, digest="a"),), (), arguments="[" * 5000)
    process.add(LOADED_OP, (Ref(-1, digest="b"),), (), arguments="[]")

    assert check_stored(process.close()).violations == []

"""Whether a run that was resumed from a checkpoint does the same as the whole run, according to their ledgers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from determinism.errors import UsageError
from determinism.launch.check import Check
from determinism.launch.runs import CheckRequest
from determinism.narrow.launch import NarrowCheck, NarrowRequest
from determinism.run_spec import RunSpec
from determinism.trace.files import create_trace
from determinism.trace.ledger import LedgerWriter
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.writer import ProcessWriter
from tests.traces import digest_of

CHECKPOINT, STEPS = 3, 6
GROUPS = ("batches", "loss", "gradients", "optimizer", "parameters", "buffers")


def ledger(folder: Path, first: int, others: Collection[tuple[int, str]] = ()) -> Trace:
    """A run with a ledger from step `first` on, in which the groups in `others` differ from those of other runs."""
    create_trace(folder, command=["program"])
    own = folder / "processes" / "main"
    own.mkdir()
    writer = ProcessWriter(own, description={"level": "step", "steps_by": "optimizer", "framework": "torch"})
    rows = LedgerWriter(own)
    for step in range(first, STEPS):
        of_step = {group: digest_of(f"{group} {step} {(step, group) in others}") for group in GROUPS}
        rows.add(step, of_step, [])
    rows.close()
    writer.close()
    return open_trace(folder)


@pytest.mark.parametrize(
    ("words", "steps", "is_resumable"),
    [
        ("train.py", 6, False),
        ("train.py --steps {steps} --save {save} --load {load}", 6, True),
        ("train.py --steps {steps} --save {save} --load {load}", None, None),
        ("train.py --steps {steps}", 6, None),
    ],
)
def test_a_command_with_all_three_placeholders_can_be_resumed(
    words: str, steps: int | None, is_resumable: bool | None
) -> None:
    """A command with only some of them, or without a number of steps, is refused."""
    request = NarrowRequest(CheckRequest(words.split(), spec=RunSpec(steps=steps)))
    if is_resumable is None:
        with pytest.raises(UsageError, match="so nothing was run"):
            _ = request.is_resumable
    else:
        assert request.is_resumable is is_resumable


@pytest.mark.parametrize(
    ("others", "continues"),
    [
        (set(), True),
        ({(CHECKPOINT, "batches")}, True),
        ({(CHECKPOINT, "batches"), (CHECKPOINT, "gradients")}, True),
        ({(CHECKPOINT, "batches"), (CHECKPOINT, "loss")}, False),
        ({(CHECKPOINT, "parameters")}, False),
        ({(CHECKPOINT, "buffers")}, False),
        ({(CHECKPOINT, "batches"), (CHECKPOINT + 1, "optimizer")}, False),
        ({(CHECKPOINT + 1, "batches")}, False),
        ({(STEPS - 1, "parameters")}, True),
    ],
)
def test_a_resumed_run_may_differ_only_in_when_it_fetched_its_first_batch(
    others: set[tuple[int, str]], continues: bool, tmp_path: Path
) -> None:
    check = NarrowCheck(NarrowRequest(CheckRequest(("program",), RunSpec())), Check)
    check._checkpoint = CHECKPOINT
    whole, resumed = ledger(tmp_path / "whole", 0), ledger(tmp_path / "resumed", CHECKPOINT, others)

    assert check._continues(resumed, whole, STEPS - 1) == continues

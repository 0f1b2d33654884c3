"""The ledger of a process: rows that survive a kill, and where two ledgers diverge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from determinism.digest import digest_text
from determinism.errors import TraceError
from determinism.trace.ledger import (
    ROW_BYTES,
    LedgerParting,
    LedgerWriter,
    StoredLedger,
    earliest,
    first_parting,
    group_digest,
    has_ledger,
    read_ledger,
    value_line,
)
from determinism.trace.schema import LEDGER_FILE

GENERATORS = [digest_text("torch"), digest_text("python")]


def ledger(
    folder: Path, parameters: Sequence[str], *, generators: Sequence[bytes] = GENERATORS, since: int = 0
) -> StoredLedger:
    """Write the ledger of a run whose generators have these states from step `since` on."""
    folder.mkdir()
    writer = LedgerWriter(folder)
    for step, value in enumerate(parameters):
        states = generators if step >= since else GENERATORS
        writer.add(step, {"loss": digest_text("loss"), "parameters": digest_text(value)}, states, float(step))
    writer.close()
    return read_ledger(folder)


def test_a_written_ledger_is_read_back(tmp_path: Path) -> None:
    found = ledger(tmp_path / "a", ["x", "y"])

    assert (len(found), found.step(1), found.loss(1)) == (2, 1, 1.0)
    assert found.digests(1)["parameters"] == digest_text("y")
    assert set(found.digests(0)) == {"loss", "parameters", "generators"}


def test_a_step_takes_far_less_than_four_kilobytes() -> None:
    assert ROW_BYTES < 400


def test_equal_ledgers_do_not_diverge(tmp_path: Path) -> None:
    assert first_parting(ledger(tmp_path / "a", "xyz"), ledger(tmp_path / "b", "xyz")) is None


def test_the_first_step_and_its_groups_are_found(tmp_path: Path) -> None:
    parting = first_parting(ledger(tmp_path / "a", "xyzz"), ledger(tmp_path / "b", "xyab"))

    assert parting is not None
    assert (parting.step, parting.groups, parting.losses) == (2, ("parameters",), (2.0, 2.0))


def test_generator_states_alone_do_not_count_but_are_named_if_other_groups_diverge_too(tmp_path: Path) -> None:
    other = [digest_text("torch"), digest_text("another")]
    first, second = ledger(tmp_path / "a", "xyz"), ledger(tmp_path / "b", "xyz", generators=other)
    third = ledger(tmp_path / "c", "xyw", generators=other)
    fourth = ledger(tmp_path / "d", "xyw", generators=other, since=2)

    assert first_parting(first, second) is None
    for run, groups in ((third, ("parameters",)), (fourth, ("parameters", "generators"))):
        parting = first_parting(first, run)
        assert parting is not None and (parting.step, parting.groups) == (2, groups)


def test_a_run_that_ends_earlier_diverges_where_it_ends(tmp_path: Path) -> None:
    parting = first_parting(ledger(tmp_path / "a", "xyz"), ledger(tmp_path / "b", "xy"))

    assert parting is not None and (parting.step, parting.groups, parting.steps) == (2, (), (3, 2))


def with_some_states(
    folder: Path, *, step_of_change: int | None = None, states: Sequence[int] = (0, 3, 7), state_every: int = 4
) -> StoredLedger:
    """Write eight steps, some with parameters, which differ from `step_of_change` on; gradients are always equal."""
    folder.mkdir()
    writer = LedgerWriter(folder, state_every)
    for step in range(8):
        groups = {"gradients": digest_text(f"gradients {step}")}
        if step in states:
            is_changed = step_of_change is not None and step >= step_of_change
            groups["parameters"] = digest_text(f"parameters {step} {is_changed}")
        writer.add(step, groups, GENERATORS)
    writer.close()
    return read_ledger(folder)


@pytest.mark.parametrize(("at", "since"), [(2, 1), (3, 1), (4, 4), (7, 4)])
def test_a_difference_at_a_step_without_a_digest_is_dated_since_the_last_digest(
    at: int, since: int, tmp_path: Path
) -> None:
    parting = first_parting(with_some_states(tmp_path / "a"), with_some_states(tmp_path / "b", step_of_change=at))

    assert parting is not None
    assert (parting.step, parting.since, parting.groups) == (3 if at <= 3 else 7, since, ("parameters",))


def test_a_difference_at_a_digested_step_is_dated_to_that_step(tmp_path: Path) -> None:
    parting = first_parting(with_some_states(tmp_path / "a"), with_some_states(tmp_path / "b", step_of_change=0))

    assert parting is not None and (parting.step, parting.since) == (0, 0)


def test_a_state_that_only_one_ledger_has_at_a_step_is_not_a_difference(tmp_path: Path) -> None:
    whole = with_some_states(tmp_path / "a")
    resumed = with_some_states(tmp_path / "b", states=(3, 5, 7)).from_step(5)

    assert first_parting(whole.from_step(5), resumed) is None


def test_a_state_that_is_missing_where_it_is_due_is_a_difference(tmp_path: Path) -> None:
    parting = first_parting(with_some_states(tmp_path / "a"), with_some_states(tmp_path / "b", states=(0, 7)))

    assert parting is not None and (parting.step, parting.groups) == (3, ("parameters",))


def test_ledgers_with_states_at_different_steps_are_compared_at_common_steps(tmp_path: Path) -> None:
    fine = with_some_states(tmp_path / "a", states=range(8), state_every=1)

    assert first_parting(fine, with_some_states(tmp_path / "b")) is None
    parting = first_parting(fine, with_some_states(tmp_path / "c", step_of_change=5))
    assert parting is not None and (parting.step, parting.since) == (7, 4)


def test_ledgers_are_compared_from_a_given_step_on(tmp_path: Path) -> None:
    first, second = ledger(tmp_path / "a", "axyz"), ledger(tmp_path / "b", "bxyz")

    assert first_parting(first.from_step(1), second.from_step(1)) is None


def test_within_a_step_the_process_whose_earliest_group_diverges_comes_first() -> None:
    follows = LedgerParting("main.rank-0", 4, ("gradients", "parameters"), (9, 9))
    begins = LedgerParting("main.rank-1", 4, ("loss", "gradients"), (9, 9))
    later = LedgerParting("main.rank-2", 5, ("batches",), (9, 9))

    assert earliest([None, later, follows, begins]) is begins
    assert earliest([None]) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from determinism.trace.ledger import LedgerWriter
writer = LedgerWriter(Path(sys.argv[1]))
for step in range(1000):
    writer.add(step, {"parameters": step.to_bytes(16, "little")}, [])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_row_survives_a_kill(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)

    assert ended.returncode == -signal.SIGKILL
    found = read_ledger(tmp_path)
    assert len(found) == 1000
    assert found.digests(999)["parameters"] == (999).to_bytes(16, "little")


def test_half_a_row_at_the_end_is_left_out(tmp_path: Path) -> None:
    ledger(tmp_path / "a", "xyz")
    path = tmp_path / "a" / LEDGER_FILE
    os.truncate(path, path.stat().st_size - 10)

    assert len(read_ledger(tmp_path / "a")) == 2


def test_a_changed_row_is_refused(tmp_path: Path) -> None:
    ledger(tmp_path / "a", "xyz")
    path = tmp_path / "a" / LEDGER_FILE
    content = bytearray(path.read_bytes())
    content[-ROW_BYTES + 40] ^= 1
    path.write_bytes(content)

    with pytest.raises(TraceError) as caught:
        read_ledger(tmp_path / "a")
    assert caught.value.identifier == "ledger-damaged"


@pytest.mark.parametrize(
    ("content", "identifier"),
    [
        (b"no ledger", "ledger-damaged"),
        (b'{"format": "determinism.ledger/99"}', "ledger-newer"),
        (b"[]", "ledger-newer"),
    ],
)
def test_a_file_that_is_not_a_ledger_is_refused(content: bytes, identifier: str, tmp_path: Path) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(content)

    with pytest.raises(TraceError) as caught:
        read_ledger(tmp_path)
    assert caught.value.identifier == identifier


def test_a_process_without_a_ledger_has_none(tmp_path: Path) -> None:
    assert not has_ledger(tmp_path)
    with pytest.raises(TraceError) as caught:
        read_ledger(tmp_path)
    assert caught.value.identifier == "ledger-missing"


def test_the_order_of_held_tensors_changes_no_digest_but_the_order_of_batches_does() -> None:
    lines = [value_line("float32 [2]", digest_text("a")), value_line("float32 [2]", digest_text("b"))]

    assert group_digest("parameters", lines) == group_digest("parameters", lines[::-1])
    assert group_digest("batches", lines) != group_digest("batches", lines[::-1])


def test_a_difference_among_200_000_steps_is_found(tmp_path: Path) -> None:
    first = ledger(tmp_path / "a", ["x"])
    rows = np.repeat(first.rows, 200_000)
    other = rows.copy()
    other["root"][150_000] = b"\\1" * 8
    other["groups"][150_000, 4] = b"\\1" * 8

    parting = first_parting(StoredLedger(rows), StoredLedger(other))
    assert parting is not None and parting.groups == ("parameters",)

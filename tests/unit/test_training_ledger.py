"""The ledger of a training loop: written if there is none, compared if there is one, and replaced only on request."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import determinism
from determinism.errors import DifferenceError, TraceError, UsageError
from determinism.golden.ledger import read_golden
from determinism.integrations import training
from determinism.integrations.training import TrainingLedger, TrainingWarning, ledger
from determinism.run_spec import RUN_VARIABLE

PLANTED = 3


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that recordings are made in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def train(steps: int = 5, *, planted: int | None = None) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        loss = model(torch.full((2, 4), step + (1e-6 if step == planted else 0.0))).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained(path: Path, *, planted: int | None = None, update: bool = False, steps: int = 5) -> TrainingLedger:
    with ledger(path, update=update) as found:
        train(steps, planted=planted)
    return found


@contextmanager
def nothing_said() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        yield


def test_a_ledger_is_written_and_equal_training_is_the_same(
    tmp_path: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nothing_said():
        assert trained(tmp_path / "train.golden").comparison is None
        found = trained(tmp_path / "train.golden")
    assert found.comparison is not None
    assert (found.comparison.verdict, found.comparison.steps) == ("same", 5)
    found.raise_if_different()
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        f"determinism: Golden written: {tmp_path}/train.golden, 5 steps",
        f"determinism: Same: 5 steps as in the golden {tmp_path}/train.golden",
    ]
    assert list(traces.glob("determinism-*")) == []


def test_a_difference_names_step_and_group_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.golden"
    trained(path)
    before = path.read_bytes()
    with pytest.warns(TrainingWarning, match=rf"loss differs at step {PLANTED}(.|\n)*\(trainer-ledger-differs\)"):
        found = trained(path, planted=PLANTED)
    assert path.read_bytes() == before
    assert found.comparison is not None
    assert found.comparison.difference is not None
    assert (found.comparison.difference.step, found.comparison.difference.group) == (PLANTED, "loss")
    with pytest.raises(DifferenceError, match=f"loss differs at step {PLANTED}"):
        found.raise_if_different()


def test_a_different_number_of_steps_is_a_difference(tmp_path: Path) -> None:
    trained(tmp_path / "train.golden")
    with pytest.warns(TrainingWarning, match="4 steps instead of 5"):
        trained(tmp_path / "train.golden", steps=4)


def test_a_ledger_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "train.golden"
    trained(path)
    before = path.read_bytes()
    with nothing_said():
        trained(path, planted=PLANTED, update=True)
        assert path.read_bytes() != before
        trained(path, planted=PLANTED)


@pytest.mark.parametrize("update", [False, True])
def test_a_file_that_is_not_a_golden_is_refused_before_training(update: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print('mine')\n")
    with pytest.raises(TraceError, match="is not a golden"), ledger(path, update=update):
        raise AssertionError("trained")
    assert path.read_text() == "print('mine')\n"


def test_a_damaged_golden_is_refused_unless_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "train.golden"
    trained(path)
    path.write_text(path.read_text()[:200])
    with pytest.raises(TraceError, match="is damaged"), ledger(path):
        raise AssertionError("trained")
    trained(path, update=True)
    assert len(read_golden(path).processes[0].rows) == 5


def test_a_missing_folder_is_reported_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"), ledger(tmp_path / "missing" / "train.golden"):
        raise AssertionError("trained")


def test_failed_training_writes_nothing(tmp_path: Path, traces: Path) -> None:
    def failing() -> None:
        with ledger(tmp_path / "train.golden"):
            train()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        failing()
    assert not (tmp_path / "train.golden").exists()
    assert list(traces.glob("determinism-*")) == []
    with determinism.record(tmp_path / "later"):
        train(1)


def test_training_without_a_step_is_reported_and_not_stopped(tmp_path: Path) -> None:
    with pytest.warns(TrainingWarning, match=r"is not affected(.|\n)*\(trainer-ledger-failed\)"):
        trained(tmp_path / "train.golden", steps=0)
    assert not (tmp_path / "train.golden").exists()


def test_within_a_recording_no_ledger_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        determinism.record(tmp_path / "trace"),
        pytest.warns(TrainingWarning, match=r"recorded already.*\(trainer-ledger-recorded\)"),
    ):
        trained(tmp_path / "train.golden")
    monkeypatch.setenv(RUN_VARIABLE, "{}")
    with pytest.warns(TrainingWarning, match="recorded already"):
        trained(tmp_path / "train.golden")
    assert not (tmp_path / "train.golden").exists()


def test_resumed_or_distributed_training_writes_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.warns(TrainingWarning, match=r"resumes from step 7.*\(trainer-ledger-resumed\)"),
        ledger(tmp_path / "train.golden", first_step=7),
    ):
        train()
    monkeypatch.setattr(training, "_num_ranks", lambda: 2)
    with pytest.warns(TrainingWarning, match=r"2 processes train together.*\(trainer-ledger-ranks\)"):
        trained(tmp_path / "train.golden")
    assert not (tmp_path / "train.golden").exists()


def test_training_that_never_ended_is_reported_when_the_next_begins(tmp_path: Path, traces: Path) -> None:
    left = TrainingLedger(tmp_path / "left.golden")
    left.begin()
    with pytest.warns(TrainingWarning, match=r"left\.golden did not end.*\(trainer-ledger-lost\)"):
        trained(tmp_path / "train.golden")
    left.end()
    assert not (tmp_path / "left.golden").exists()
    assert len(read_golden(tmp_path / "train.golden").processes[0].rows) == 5
    assert list(traces.glob("determinism-*")) == []

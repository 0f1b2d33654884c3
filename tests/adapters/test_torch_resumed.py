"""A resumed run is compared with the same steps of the full run, and the parts that the checkpoint lacks are named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

import determinism
from determinism.comparison.columns import producers
from determinism.comparison.records import entry_of
from determinism.resume.compare import compare_resumed, conclude_resumed
from determinism.resume.observed import ResumedProcess
from determinism.resume.unsaved import unsaved
from determinism.session import seeding
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.views import TraceSuffix
from determinism.types import Kind, Verdict

STEPS, SAVED_AT, BATCH, SAMPLES = 9, 5, 4, 12


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


class Shuffled(Sampler[int]):
    """Yields the order of each epoch, from a position on."""

    def __init__(self) -> None:
        self.epoch = 0
        self.consumed = 0

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        start, self.consumed = self.consumed, 0
        yield from order[start:]


def states(without: str) -> dict[str, Any]:
    found = {"rng-torch": torch.get_rng_state(), "rng-python": random.getstate(), "rng-numpy": np.random.get_state()}
    return {name: state for name, state in found.items() if name != without}


def set_states(saved: dict[str, Any]) -> None:
    setters = {"rng-torch": torch.set_rng_state, "rng-python": random.setstate, "rng-numpy": np.random.set_state}
    for name, state in saved.items():
        setters[name](state)


def training(file: Path, run: str, without: str, steps: int = STEPS) -> None:
    """Train from the beginning to the end, to the checkpoint, or from the checkpoint on."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(8 if run == "resumed" else 7)
    inputs = torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4).sin()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    sampler = Shuffled()
    # Every iterator of a loader draws a number, even one made in the middle of an epoch.
    own = torch.default_generator if without == "own generator" else torch.Generator()
    loader = DataLoader(TensorDataset(inputs), batch_size=BATCH, sampler=sampler, generator=own)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    step = 0
    if run == "resumed":
        saved = torch.load(file, weights_only=False)
        for name, state in saved["parts"].items():
            parts[name].load_state_dict(state)
        set_states(saved["states"])
        step = saved["step"]
        if "own" in saved and without != "own generator":
            own.set_state(saved["own"])
        sampler.epoch, sampler.consumed = divmod(saved["position"], SAMPLES)
    while step < steps:
        began = own.get_state()
        for (batch,) in loader:
            optimizer.zero_grad()
            scale = 1 + 0.1 * random.random() + 0.1 * np.random.rand()
            # The seed that the loader's iterator draws is not used, since there are no workers.
            noise = 0.1 * torch.rand(batch.shape, generator=own) if without == "rng-generator" else 0.0
            loss = model(batch + noise).pow(2).mean() * scale
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            step += 1
            if run == "first" and step == SAVED_AT:
                kept = {name: part.state_dict() for name, part in parts.items() if name != without}
                position = 0 if without == "sampler-position" else step * BATCH
                saved = {"parts": kept, "states": states(without), "step": step, "position": position}
                torch.save(saved if without == "rng-generator" else {**saved, "own": began}, file)  # SAVES
                return
            if step == steps:
                return
        sampler.epoch += 1


def compared(folder: Path, without: str) -> ResumedProcess:
    for run in ("full", "first", "resumed"):
        with determinism.record(folder / run):
            training(folder / "checkpoint", run, without)
    (process,) = compare_resumed(*(open_trace(folder / run) for run in ("full", "first", "resumed")))
    assert process.first_departs is None
    assert (process.steps_before, process.steps) == (SAVED_AT, STEPS - SAVED_AT)
    return process


def test_a_complete_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    process = compared(tmp_path, "")

    assert process.result.divergence is None, process.result.divergence
    assert unsaved(process) == []


LACKING = (
    *("model", "optimizer", "scheduler", "scaler", "sampler-position"),
    *("rng-torch", "rng-python", "rng-numpy", "rng-generator"),
)


@pytest.mark.parametrize("part", LACKING)
def test_a_missing_part_is_named_with_the_line_that_saves(tmp_path: Path, part: str) -> None:
    process = compared(tmp_path, part)
    divergence = process.result.divergence
    assert divergence is not None and divergence.step >= SAVED_AT
    found = unsaved(process)

    assert [missing.identifier for missing in found] == [part]
    site = found[0].site
    assert site is not None and Path(site.file) == Path(__file__) and site.code.endswith("# SAVES")
    assert f"{part.replace('-position', '')}" in found[0].fix or part.startswith(("rng", "sampler"))


def test_a_generator_that_is_restored_too_early_is_recognized(tmp_path: Path) -> None:
    """The iterator of the loader draws from it before the first step."""
    (missing,) = unsaved(compared(tmp_path, "own generator"))

    assert missing.identifier == "rng-torch"
    assert "It was saved and restored, but was drawn from" in missing.fix


def recorded(folder: Path, *runs: str, steps: int = STEPS) -> list[Trace]:
    for run in runs:
        with determinism.record(folder / run):
            training(folder / "checkpoint", run, "", steps)
    return [open_trace(folder / run) for run in runs]


def test_a_full_run_that_ends_at_the_checkpoint_leaves_nothing_to_compare(tmp_path: Path) -> None:
    first, resumed = recorded(tmp_path, "first", "resumed")
    (full,) = recorded(tmp_path, "full", steps=SAVED_AT)
    comparison = conclude_resumed(compare_resumed(full, first, resumed), full, first, resumed)

    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["resume-nothing-compared"]
    assert "The full run made 5 steps, the first 5 and the resumed one 4" in comparison.trouble[0].message


def test_a_resumed_run_that_ends_early_is_different(tmp_path: Path) -> None:
    full, first = recorded(tmp_path, "full", "first")
    (resumed,) = recorded(tmp_path, "resumed", steps=STEPS - 1)
    comparison = conclude_resumed(compare_resumed(full, first, resumed), full, first, resumed)

    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.kind, comparison.first_divergence.step) == (Kind.STRUCTURE, STEPS - 1)


def test_a_trace_suffix_does_not_refer_to_earlier_records(tmp_path: Path) -> None:
    (full,) = recorded(tmp_path, "full")
    (process,) = full.processes
    whole = [chunk.rows for chunk in process.chunks()]
    start = sum(int((chunk.columns["step"] < SAVED_AT).sum()) for chunk in process.chunks())
    rest = TraceSuffix(process, start, steps_before=10)
    chunks = list(rest.chunks())

    assert sum(chunk.rows for chunk in chunks) == sum(whole) - start
    assert chunks[0].first == 0
    assert int(chunks[0].columns["step"][0]) == SAVED_AT + 10
    for chunk in chunks:
        sources = producers(chunk)
        assert sources.min() >= -1 and sources.max() < chunk.first + chunk.rows
    # Tensors that the model held at the checkpoint are known by their digests.
    one = next(
        found
        for row in range(chunks[0].rows)
        if (found := entry_of(rest, *rest.record(row))).op.startswith("aten::addmm")
    )
    bias, batch, weight = one.inputs
    assert (bias.producer, weight.producer) == (-1, -1) and batch.producer >= 0
    assert bias.digest is not None


def test_several_missing_parts_are_named_together(tmp_path: Path) -> None:
    def without_two() -> None:
        saved = torch.load(tmp_path / "checkpoint", weights_only=False)
        del saved["parts"]["optimizer"], saved["states"]["rng-torch"]
        torch.save(saved, tmp_path / "checkpoint")

    for run in ("full", "first", "resumed"):
        if run == "resumed":
            without_two()
        with determinism.record(tmp_path / run):
            training(tmp_path / "checkpoint", run, "")
    (process,) = compare_resumed(*(open_trace(tmp_path / run) for run in ("full", "first", "resumed")))

    assert {missing.identifier for missing in unsaved(process)} == {"optimizer", "rng-torch"}


def test_a_missing_scheduler_is_an_argument_difference_of_the_optimizer(tmp_path: Path) -> None:
    process = compared(tmp_path, "scheduler")

    assert process.result.divergence is not None
    assert process.result.divergence.kind is Kind.ARGUMENT
    assert process.result.divergence.phase == "optimizer"

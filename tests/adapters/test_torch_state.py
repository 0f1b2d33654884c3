"""`determinism.state` with PyTorch: parts, generators, the position of a loader, and when a state does not fit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import determinism
from determinism.errors import StateError, UsageError
from determinism.session import seeding
from determinism.session.seeding import RANK_VARIABLES
from determinism.state import Checkpointed, State, capture, from_bytes, from_dict, restore, resumable


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*RANK_VARIABLES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    restore_states = seeding.capture_states()
    yield
    restore_states()


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), float(torch.randn(1))]


class Training:
    """A model with everything that checkpoints often omit."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4, 6])
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        self.own = torch.Generator().manual_seed(5)

    def parts(self) -> dict[str, Any]:
        return vars(self)

    def steps(self, count: int) -> list[Any]:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4, generator=self.own)).pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        held = [value for state in self.optimizer.state.values() for value in state.values()]
        return [tensor.tolist() for tensor in [*self.model.state_dict().values(), *held]] + [self.scaler.get_scale()]


FORMS: dict[str, Any] = {
    "as it is": lambda state: state,
    "bytes": lambda state: from_bytes(state.to_bytes()),
    "dictionary": lambda state: from_dict(state.to_dict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_training_resumes_as_if_it_had_not_stopped(form: str) -> None:
    whole = Training()
    whole.steps(3)
    state = FORMS[form](capture(step=3, **whole.parts()))
    expected = whole.steps(4)

    resumed = Training()
    assert restore(state, **resumed.parts()) == []
    assert state.step == 3
    assert resumed.steps(4) == expected


@pytest.mark.parametrize("part", ["model", "optimizer", "scheduler", "scaler", "own"])
def test_each_part_is_needed(part: str) -> None:
    whole = Training()
    whole.steps(3)
    state = capture(**whole.parts())
    expected = whole.steps(4)

    resumed = Training()
    given = {name: thing for name, thing in resumed.parts().items() if name != part}
    with pytest.raises(StateError, match=f"{part}, which was not given"):
        restore(state, **given)
    restore(state, allow=[part], **given)
    assert resumed.steps(4) != expected


def test_capturing_copies_and_draws_nothing() -> None:
    training = Training()
    before = torch.get_rng_state()
    state = capture(**training.parts())
    weight = state["model"]["0.weight"]

    assert torch.equal(torch.get_rng_state(), before)
    training.steps(1)
    assert torch.equal(state["model"]["0.weight"], weight)
    assert not torch.equal(training.model[0].weight, weight)


def test_all_generators_draw_the_same_numbers_again() -> None:
    seeds = determinism.seed(1)
    registered = [seeds.register(made) for made in (random.Random(), np.random.default_rng(), torch.Generator())]

    def draw() -> list[float]:
        python, numpy, pytorch = registered
        return [*drawn(), python.random(), numpy.random(), float(torch.rand(1, generator=pytorch))]

    draw()
    state = capture()
    expected = draw()
    draw()
    seeds.begin(epoch=3)

    restore(from_bytes(state.to_bytes()))
    assert draw() == expected
    assert seeds.streams.epoch == 0


def test_a_registered_function_without_a_state_is_a_gap() -> None:
    determinism.seed(1).register(lambda number: None, name="simulator")

    assert capture().gaps == ["the registered function 'simulator' does not expose its state"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.float16])
def test_every_dtype_survives_a_round_trip(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.0, -0.0, 1.5]]).to(dtype)
    for value in (tensor, tensor[0, 2], tensor[:, :0]):
        found = from_bytes(capture(value=value).to_bytes())["value"]
        assert found.dtype == dtype and found.shape == value.shape
        assert torch.equal(found.view(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))


def test_settings_are_restored_and_reported() -> None:
    state = capture()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        changed = restore(state)
    finally:
        present = torch.get_num_threads()
        torch.set_num_threads(threads)

    assert changed == [f"torch.get_num_threads: was {threads}, is {threads + 1}"]
    assert present == threads


def batches(loader: Any) -> Iterator[list[float]]:
    for (batch,) in loader:
        random.random()
        yield [*batch.tolist(), float(torch.rand(1))]


def loaders() -> dict[str, Any]:
    data = TensorDataset(torch.arange(12.0))
    generator = torch.Generator().manual_seed(1)
    return {
        "in order": DataLoader(data, batch_size=2),
        "shuffled by the global generator": DataLoader(data, batch_size=2, shuffle=True),
        "shuffled by its own": DataLoader(data, batch_size=2, shuffle=True, generator=generator),
        "with replacement": DataLoader(
            data, batch_size=2, sampler=RandomSampler(data, replacement=True, generator=generator)
        ),
    }


@pytest.mark.parametrize("which", loaders())
@pytest.mark.parametrize("consumed", [0, 1, 4, 6])
def test_a_loader_resumes_at_its_position(which: str, consumed: int) -> None:
    torch.manual_seed(2)
    loader = resumable(loaders()[which])
    assert len(list(batches(loader))) == len(loader) == 6
    iterator = batches(loader)
    for _ in range(consumed):
        next(iterator)
    state = capture(loader=loader)
    expected = [*iterator, *batches(loader)]

    torch.manual_seed(3)
    fresh = resumable(loaders()[which])
    restore(from_bytes(state.to_bytes()), loader=fresh)
    if consumed:
        # Numbers that the program draws before it resumes the epoch do not matter.
        torch.rand(5)
    rest = list(batches(fresh))
    assert [*rest, *batches(fresh)][: len(expected)] == expected
    assert len(rest) == 6 - consumed


def test_an_epoch_that_was_left_early_is_over() -> None:
    loader = resumable(DataLoader(TensorDataset(torch.arange(6.0))))
    for _ in loader:
        break

    assert loader.state_dict()["began"] is None


def test_an_unwrapped_loader_is_refused() -> None:
    with pytest.raises(StateError, match=r"loader = determinism\.state\.resumable\(loader\)") as caught:
        capture(loader=DataLoader(TensorDataset(torch.arange(6.0))))
    assert caught.value.identifier == "state-loader-untracked"


def test_persistent_workers_are_refused() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1, persistent_workers=True)
    with pytest.raises(StateError) as caught:
        resumable(loader)
    assert caught.value.identifier == "state-loader-persistent"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"num_workers": 1}, "num_workers was 0, but is 1 here"), ({"batch_size": 3}, "batch_size was 2, but is 3 here")],
)
def test_a_different_loader_is_refused(change: dict[str, Any], reason: str) -> None:
    data = TensorDataset(torch.arange(6.0))
    state = capture(loader=resumable(DataLoader(data, batch_size=2)))

    with pytest.raises(StateError, match=reason):
        restore(state, loader=resumable(DataLoader(data, **{"batch_size": 2, **change})))


def test_a_loader_with_too_few_batches_is_refused() -> None:
    def of(count: int) -> Any:
        return resumable([torch.zeros(1)] * count)

    first = of(4)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = capture(loader=first)
    shorter = of(2)
    restore(state, loader=shorter)
    with pytest.raises(StateError, match="had consumed 3 batches of the epoch, but the loader yields only 2"):
        next(iter(shorter))


class Noisy:
    """Draws from the global generator and from its own for each sample."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(()) + self.own.random()


def test_a_registered_generator_of_the_data_set_resumes() -> None:
    def loader() -> Any:
        own = determinism.seed(1).register(np.random.default_rng(0), name="own")
        return resumable(DataLoader(Noisy(own), batch_size=2, shuffle=True))

    first = loader()
    iterator = iter(first)
    next(iterator)
    state = capture(loader=first)
    expected = [batch.tolist() for batch in iterator]

    second = loader()
    restore(state, loader=second)
    assert [batch.tolist() for batch in second] == expected


def test_two_loaders_that_draw_from_the_same_generator_resume_together() -> None:
    def loaders() -> list[Any]:
        determinism.seed(1)
        return [resumable(DataLoader(Noisy(random), batch_size=size, shuffle=True)) for size in (1, 2)]

    def together(iterators: list[Any]) -> list[Any]:
        return [[batch.tolist() for batch in pair] + [torch.rand(()).item()] for pair in zip(*iterators, strict=False)]

    first = loaders()
    iterators = [iter(loader) for loader in first]
    for iterator in iterators:
        next(iterator)
    state = capture(first=first[0], second=first[1])
    expected = together(iterators)
    for _ in range(2):  # also after an earlier resume
        second = loaders()
        restore(state, first=second[0], second=second[1])
        assert together([iter(loader) for loader in second]) == expected


def with_surroundings(state: State, **changes: Any) -> State:
    return State({**state.document, "surroundings": {**state.document["surroundings"], **changes}}, state.arrays)


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        ({"rank": 1}, "rank", "captured by rank 1, but this is rank 0"),
        ({"ranks": 4}, "ranks", "captured with 4 ranks, but there are 1 here"),
        ({"devices": {"cuda": 9}}, "devices", "9 devices of kind cuda, but there are"),
        ({"versions": {"torch": "1.9.0"}}, "versions", "captured with torch 1.9.0, but"),
    ],
)
def test_a_state_from_elsewhere_is_refused_and_changes_nothing(changes: dict[str, Any], word: str, reason: str) -> None:
    state = with_surroundings(capture(), **changes)
    torch.rand(1)
    before = torch.get_rng_state()

    with pytest.raises(StateError, match=reason) as caught:
        restore(state)
    assert caught.value.identifier == "state-unfit"
    assert torch.equal(torch.get_rng_state(), before)
    restore(state, allow=[word])
    assert not torch.equal(torch.get_rng_state(), before)


def test_all_reasons_are_reported_at_once() -> None:
    state = with_surroundings(capture(own=torch.Generator(), best=1.0), rank=1, ranks=4)
    with pytest.raises(StateError) as caught:
        restore(state, own=random.Random(), best=2.0, other=random.Random())
    for text in (
        "rank 1",
        "4 ranks",
        "own was a torch.Generator on cpu",
        "state['best']",
        "other was given, but was not captured",
    ):
        assert text in caught.value.message


def test_a_state_with_a_generator_that_is_not_registered_is_refused() -> None:
    seeds = determinism.seed(1)
    seeds.register(random.Random(), name="augmentation")
    state = capture()
    seeds.unregister("augmentation")

    with pytest.raises(StateError, match="'augmentation', but there is none here"):
        restore(state)
    restore(state, allow=["registered"])


@pytest.mark.parametrize("allow", [["version"], "ranks"])
def test_unknown_values_of_allow_are_refused(allow: Any) -> None:
    with pytest.raises(UsageError) as caught:
        restore(capture(), allow=allow)
    assert caught.value.identifier == "allow-unknown"


def test_torch_load_reads_a_state_with_weights_only(tmp_path: Path) -> None:
    training = Training()
    torch.save({"epoch": 3, "state": capture(epoch=3, **training.parts()).to_dict()}, tmp_path / "last.pt")

    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    assert from_dict(saved["state"]).epoch == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distributed_checkpoints_hold_a_state(tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    whole = Training()
    whole.steps(2)
    checkpoint.save({"run": Checkpointed(step=2, **whole.parts())}, checkpoint_id=tmp_path / "whole", no_dist=True)
    expected = whole.steps(2)

    resumed = Training()
    state = Checkpointed(step=0, **resumed.parts())
    checkpoint.load({"run": state}, checkpoint_id=tmp_path / "whole", no_dist=True)
    assert state.values == {"step": 2}
    assert resumed.steps(2) == expected


def test_a_distributed_checkpoint_of_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpointed().state_dict()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StateError, match="holds states of rank-0, but this is rank-1"):
        Checkpointed().load_state_dict(saved)


def test_a_setting_that_cannot_be_restored_leaves_everything_unchanged() -> None:
    state = capture()
    settings = {
        **state.document["settings"],
        "torch.get_num_threads": torch.get_num_threads() + 1,
        "torch.no_such": True,
    }
    other = State({**state.document, "settings": settings}, state.arrays)
    threads, before = torch.get_num_threads(), torch.get_rng_state()

    with pytest.raises(StateError, match=r"torch\.no_such: was True, is None .*\(settings\)"):
        restore(other)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rank_comes_from_the_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    try:
        found = capture().document["surroundings"]
    finally:
        torch.distributed.destroy_process_group()

    assert (found["rank"], found["ranks"]) == (0, 1)

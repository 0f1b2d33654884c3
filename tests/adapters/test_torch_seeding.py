"""`determinism.seed` with PyTorch: generators, data loader workers, epochs, resuming."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import determinism
from determinism.errors import UsageError
from determinism.frameworks.torch.enable import generator
from determinism.seeds import Streams
from determinism.session import seeding

MAIN = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


class Augmented(Dataset[torch.Tensor]):
    """Samples of their index and a draw from each of three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(1).item()], dtype=torch.float64)


def epochs(seeds: determinism.Seeds, loader: DataLoader[Any], numbers: range) -> list[list[list[float]]]:
    """The samples of each epoch."""
    found = []
    for number in numbers:
        seeds.begin(epoch=number)
        found.append(torch.cat(list(loader)).tolist())
    return found


def loader(seeds: determinism.Seeds, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        Augmented(), batch_size=2, shuffle=True, num_workers=workers,
        worker_init_fn=seeds.worker_init_fn, generator=seeds.generator(), **options,
    )  # fmt: skip


def test_streams_differ_even_if_the_seed_bits_that_pytorch_keeps_are_equal() -> None:
    """On the CPU, `manual_seed` keeps 32 bits; among 150,000 streams, some share them."""
    kept: dict[int, Streams] = {}
    for epoch in itertools.count():
        streams = Streams(1, epoch=epoch)
        value = streams.integer("torch", "cpu", 0, "default", bits=64) & 0xFFFFFFFF
        if value in kept:
            break
        kept[value] = streams
    one, other = (generator(which, "default") for which in (kept[value], streams))

    plain = [torch.Generator().manual_seed(made.initial_seed()) for made in (one, other)]
    assert one.initial_seed() != other.initial_seed()
    assert torch.equal(torch.rand(9, generator=plain[0]), torch.rand(9, generator=plain[1]))
    assert not torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=other))


def test_every_rank_worker_epoch_and_task_draws_different_numbers() -> None:
    grid = [
        Streams(1, rank=rank, worker=worker, epoch=epoch, task=task)
        for rank, worker, epoch, task in itertools.product(range(4), (None, 0, 1), range(10), ("main", 1))
    ]
    drawn = {tuple(torch.rand(2, generator=generator(streams, "default")).tolist()) for streams in grid}

    assert len(drawn) == len(grid) == 240


def test_numbers_are_uniformly_distributed() -> None:
    made = generator(Streams(1), "default")
    numbers = torch.rand(100_000, generator=made)
    counts = torch.histc(numbers, bins=100, min=0, max=1)

    assert 0.49 < numbers.mean() < 0.51
    assert counts.min() > 800 and counts.max() < 1200
    assert torch.rand(1, generator=made) != torch.rand(1, generator=made)


def test_seeding_repeats_even_after_a_single_normal_draw() -> None:
    def drawn() -> list[float]:
        return [
            torch.rand(1).item(),
            torch.randn(1).item(),
            *torch.randperm(9).tolist(),
            torch.normal(0.0, 1.0, (3,))[0].item(),
        ]

    seeds = determinism.seed(1)
    first = drawn()
    torch.randn(1)
    seeds.begin()
    assert drawn() == first
    seeds.begin(epoch=1)
    assert drawn() != first


def test_a_saved_state_continues_the_sequence() -> None:
    determinism.seed(1)
    torch.rand(1000)
    state = torch.get_rng_state()
    expected = torch.rand(5)
    torch.set_rng_state(state)

    assert torch.equal(torch.rand(5), expected)


def test_a_registered_generator_is_seeded_with_the_others() -> None:
    seeds = determinism.seed(1)
    own = seeds.register(torch.Generator(), name="noise")
    first = torch.rand(3, generator=own)
    seeds.begin(epoch=1)
    second = torch.rand(3, generator=own)
    seeds.begin(epoch=0)

    assert torch.equal(torch.rand(3, generator=own), first)
    assert not torch.equal(first, second)


@MAIN
def test_a_resumed_loader_gives_the_samples_of_the_full_run(workers: int) -> None:
    full_seeds = determinism.seed(1)
    full = epochs(full_seeds, loader(full_seeds, workers), range(3))
    resumed_seeds = determinism.seed(1)
    resumed = epochs(resumed_seeds, loader(resumed_seeds, workers), range(2, 3))

    assert resumed[0] == full[2]
    assert len({str(epoch) for epoch in full}) == 3
    assert [sorted(row[0] for row in epoch) for epoch in full] == [list(range(12))] * 3


@MAIN
def test_epochs_that_are_not_begun_explicitly_differ_and_repeat(workers: int) -> None:
    def passes() -> list[Any]:
        made = loader(determinism.seed(1), workers)
        return [torch.cat(list(made)).tolist() for _ in range(2)]

    first, second = passes(), passes()

    assert first == second
    assert first[0] != first[1]
    assert not {row[2] for row in first[0]} & {row[2] for row in first[1]}


def test_workers_and_libraries_draw_different_numbers() -> None:
    seeds = determinism.seed(1)
    rows = epochs(seeds, loader(seeds, 2), range(2))
    drawn = [number for epoch in rows for row in epoch for number in row[1:]]

    assert len(set(drawn)) == len(drawn) == 72


def test_ranks_draw_different_numbers() -> None:
    found = []
    for rank in range(2):
        seeds = determinism.seed(1, rank=rank)
        found.append({row[2] for row in epochs(seeds, loader(seeds, 2), range(1))[0]})

    assert not found[0] & found[1]


def test_spawned_workers_draw_the_same_numbers_as_forked_ones() -> None:
    found = []
    for context in ("fork", "spawn"):
        seeds = determinism.seed(1)
        found.append(epochs(seeds, loader(seeds, 2, multiprocessing_context=context), range(1, 2)))

    assert found[0] == found[1]


class TestSampler:
    @pytest.mark.parametrize(("samples", "ranks"), [(12, 1), (12, 4), (13, 4), (3, 4)])
    def test_ranks_take_parts_of_one_order(self, samples: int, ranks: int) -> None:
        parts = []
        for rank in range(ranks):
            seeds = determinism.seed(1, rank=rank)
            sampler = seeds.sampler(range(samples), ranks=ranks)
            parts.append(list(sampler))
            assert len(parts[-1]) == len(sampler)

        assert {len(part) for part in parts} == {-(-samples // ranks)}
        assert {index for part in parts for index in part} == set(range(samples))
        assert sum(len(part) for part in parts) - samples < ranks

    def test_the_order_depends_only_on_seed_and_epoch(self) -> None:
        seeds = determinism.seed(1)
        sampler = seeds.sampler(range(50))
        orders = []
        for epoch in range(3):
            seeds.begin(epoch=epoch)
            torch.rand(epoch + 1)
            orders.append(list(sampler))
        fresh = determinism.seed(1, epoch=2)

        assert list(fresh.sampler(range(50))) == orders[2]
        assert len({tuple(order) for order in orders}) == 3

    def test_consumed_samples_are_skipped_once(self) -> None:
        sampler = determinism.seed(1).sampler(range(10))
        order = list(sampler)
        sampler.skip(4)

        assert len(sampler) == 6
        assert list(sampler) == order[4:]
        assert list(sampler) == order

    def test_a_rank_out_of_range_is_refused(self) -> None:
        with pytest.raises(UsageError, match="rank 4, but the data set is divided among 4"):
            determinism.seed(1, rank=4).sampler(range(10), ranks=4)

"""Streams of one master seed: distinct for different places, equal for the same place."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from determinism.errors import UsageError
from determinism.seeds import Streams, UnseededNumpy, numpy_generator, python_generator

GRID = [
    Streams(master, rank=rank, worker=worker, epoch=epoch, task=task, process=process)
    for master, rank, worker, epoch, task, process in itertools.product(
        (0, 1, 17, 256, 2**63),
        (None, 0, 1, 7),
        (None, 0, 1),
        range(5),
        ("main", "train", 0, 1, "1"),
        ("", "SpawnProcess-1"),
    )
]


def test_all_places_have_distinct_streams() -> None:
    digests = {streams.digest(name) for streams in GRID for name in ("python", "numpy")}

    assert len(digests) == 2 * len(GRID) == 6000


def test_streams_also_differ_in_the_bits_that_a_legacy_generator_takes() -> None:
    words = {tuple(streams.words("numpy", count=16)) for streams in GRID}

    assert len(words) == len(GRID)


def test_neighbouring_streams_are_unrelated() -> None:
    bits = [streams.integer("python", bits=512) for streams in GRID[:600]]
    shares = [(a ^ b).bit_count() / 512 for a, b in itertools.pairwise(bits)]

    assert min(shares) > 0.35 and max(shares) < 0.65


def test_one_name_is_not_confused_with_two() -> None:
    streams = Streams(1)

    assert len({streams.digest("a", "b"), streams.digest("a,b"), streams.digest('a","b'), streams.digest("ab")}) == 4
    assert streams.digest("torch", 1) != streams.digest("torch", "1")


@pytest.mark.parametrize("size", [1, 8, 64, 65, 2496])
def test_a_digest_has_the_requested_size(size: int) -> None:
    assert len(Streams(1).digest("a", size=size)) == size


@pytest.mark.parametrize("bits", [31, 32, 63, 64, 512])
def test_numbers_fill_their_bits(bits: int) -> None:
    numbers = [streams.integer("a", bits=bits) for streams in GRID[:400]]

    assert max(numbers) >> (bits - 1) == 1 and min(numbers) >> (bits - 3) == 0


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_streams_are_the_same_in_every_process(hash_seed: str) -> None:
    code = "from determinism.seeds import Streams; print(Streams(5, rank=2, worker=1, epoch=3, task='é').digest('a').hex())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    assert printed.strip() == Streams(5, rank=2, worker=1, epoch=3, task="é").digest("a").hex()


def test_the_stream_of_a_seed_never_changes() -> None:
    # A change here changes the random numbers of everyone's runs.
    assert Streams(1).digest("python", size=8).hex() == "6bfc476e0c655e51"


def test_shared_streams_are_those_of_all_ranks() -> None:
    shared = {Streams(3, rank=rank, process=f"p{rank}").shared.digest("a") for rank in range(8)}

    assert len(shared) == 1
    assert shared.isdisjoint({Streams(3, rank=rank).digest("a") for rank in range(8)})


@pytest.mark.parametrize(
    "arguments",
    [
        {"master": "1"}, {"master": 1.0}, {"master": True}, {"master": 2**600},
        {"rank": -1}, {"rank": "0"}, {"worker": -1}, {"epoch": -1}, {"epoch": 1.5}, {"epoch": None}, {"task": -1}, {"task": None},
    ],
)  # fmt: skip
def test_invalid_places_are_refused(arguments: dict[str, Any]) -> None:
    (name, value) = next(iter(arguments.items()))
    with pytest.raises(UsageError, match=rf"^{name}={value!r} cannot name") as caught:
        Streams(**{"master": 1, **arguments})

    assert caught.value.identifier == "seed-unusable"


def test_generators_have_the_streams_of_their_names() -> None:
    here, there = Streams(1), Streams(1, epoch=1)

    for make in (python_generator, numpy_generator):
        first = [make(streams, name).random() for streams in (here, there) for name in ("a", "b")]
        assert len(set(first)) == 4
        assert make(here, "a").random() == first[0]


class TestUnseededNumpy:
    def test_generators_without_a_seed_repeat(self) -> None:
        def drawn() -> list[float]:
            replacement = UnseededNumpy(lambda: Streams(1))
            assert replacement.install() is None
            try:
                return [
                    np.random.default_rng().random(),
                    np.random.default_rng().random(),
                    np.random.RandomState().rand(),
                ]
            finally:
                replacement.remove()

        assert drawn() == drawn()
        assert len(set(drawn())) == 3

    def test_after_removal_generators_take_system_entropy_again(self) -> None:
        replacement = UnseededNumpy(lambda: Streams(1))
        replacement.install()
        replacement.remove()

        assert len({np.random.default_rng().random() for _ in range(3)}) == 3
        assert isinstance(getattr(np.random.bit_generator.randbits, "__self__", None), random.SystemRandom)  # type: ignore[attr-defined]

    def test_generators_with_a_seed_stay_as_they_are(self) -> None:
        before = np.random.default_rng(5).random()
        replacement = UnseededNumpy(lambda: Streams(1))
        replacement.install()
        try:
            assert np.random.default_rng(5).random() == before
        finally:
            replacement.remove()

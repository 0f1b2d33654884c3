"""`determinism.seed` without a framework: Python, NumPy, registered generators and child processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import determinism
from determinism.errors import UsageError
from determinism.session import seeding
from determinism.session.seeding import RANK_VARIABLES


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    restore = seeding.capture_states()
    yield
    restore()


def drawn() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), np.random.default_rng().random()


def printed(code: str, **environment: str) -> Any:
    """The JSON that a program prints in its own process."""
    output = subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, **environment}, text=True, timeout=600
    )
    return json.loads(output)


def test_the_same_seed_gives_the_same_numbers() -> None:
    determinism.seed(1)
    first = drawn()
    determinism.seed(1)

    assert drawn() == first


@pytest.mark.parametrize("place", [{"master": 2}, {"rank": 1}, {"worker": 0}, {"epoch": 1}, {"task": "train"}])
def test_a_different_place_gives_different_numbers(place: dict[str, Any]) -> None:
    determinism.seed(1)
    first = drawn()
    determinism.seed(place.pop("master", 1), **place)

    assert not set(drawn()) & set(first)


def test_a_drawn_master_seed_is_available_and_repeats_the_run() -> None:
    seeds = determinism.seed(None)
    first = drawn()
    determinism.seed(seeds.master)

    assert drawn() == first
    assert seeds.master_was_drawn
    assert determinism.seed(None).master != seeds.master
    with pytest.raises(UsageError, match="no stream is shared"):
        _ = seeds.shared


def test_an_epoch_repeats_whichever_epochs_ran_before() -> None:
    full = determinism.seed(1)
    epochs = []
    for epoch in range(4):
        full.begin(epoch=epoch)
        epochs.append(drawn())
    resumed = determinism.seed(1)
    resumed.begin(epoch=2)

    assert drawn() == epochs[2]
    assert len(set(epochs)) == 4


def test_looking_at_another_place_seeds_nothing() -> None:
    seeds = determinism.seed(1)
    first = drawn()
    determinism.seed(1)
    seeds.at(epoch=5).numpy("augmentation").random()

    assert drawn() == first


@pytest.mark.parametrize("variable", RANK_VARIABLES)
def test_the_rank_is_read_from_the_launcher(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")

    assert determinism.seed(1).streams.rank == 3
    assert determinism.seed(1, rank=0).streams.rank == 0


def test_a_rank_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "two")
    before = random.getstate()

    with pytest.raises(UsageError, match="RANK is 'two'"):
        determinism.seed(1)
    assert random.getstate() == before


class TestRegisteredGenerators:
    def test_each_generator_has_its_own_stream(self) -> None:
        seeds = determinism.seed(1)
        given: list[int] = []
        generators = [
            random.Random(),
            np.random.default_rng(),
            np.random.RandomState(),
            np.random.Generator(np.random.Philox()),
        ]
        for generator in generators:
            assert seeds.register(generator) is generator
        seeds.register(given.append, name="function")
        first = [generator.random() for generator in generators]
        seeds.begin()

        assert [generator.random() for generator in generators] == first
        assert len(set(first)) == 4
        assert len(given) == 2 and len(set(given)) == 1 and 0 <= given[0] < 2**32
        seeds.begin(epoch=1)
        assert not {generator.random() for generator in generators} & set(first)
        assert given[2] != given[0]

    def test_shared_generators_are_the_same_in_all_ranks(self) -> None:
        given: dict[str, list[int]] = {"own": [], "shared": []}
        seeds = determinism.seed(1, rank=0)
        seeds.register(given["own"].append, name="own")
        seeds.register(given["shared"].append, name="shared", shared=True)
        seeds.begin(rank=1)

        assert given["own"][0] != given["own"][1]
        assert given["shared"][0] == given["shared"][1]

    def test_shared_generators_need_a_master_seed_that_other_ranks_have(self) -> None:
        with pytest.raises(UsageError, match="This process drew"):
            determinism.seed(None).register(random.Random(), shared=True)

    def test_an_unregistered_generator_is_left_alone(self) -> None:
        class Jitter:
            def __init__(self) -> None:
                self.given: list[int] = []

            def reseed(self, seed: int) -> None:
                self.given.append(seed)

        jitter = Jitter()
        seeds = determinism.seed(1)
        seeds.register(jitter.reseed)
        seeds.unregister(jitter.reseed)
        seeds.begin(epoch=1)

        assert len(jitter.given) == 1
        with pytest.raises(UsageError, match="not registered"):
            seeds.unregister(jitter.reseed)

    def test_a_name_can_be_registered_only_once(self) -> None:
        seeds = determinism.seed(1)
        seeds.register(random.Random(), name="a")

        with pytest.raises(UsageError, match="under the name 'a'"):
            seeds.register(random.Random(), name="a")

    def test_each_seed_starts_without_registered_generators(self) -> None:
        given: list[int] = []
        determinism.seed(1).register(given.append, name="a")
        determinism.seed(1).register(random.Random(), name="a")

        assert len(given) == 1

    @pytest.mark.parametrize("thing", [None, 5, "generator", object()])
    def test_an_object_that_cannot_be_seeded_is_refused(self, thing: object) -> None:
        with pytest.raises(UsageError, match="is not a generator"):
            determinism.seed(1).register(thing)


class TestSuspendAndResume:
    def test_a_resumed_run_continues_at_its_place(self) -> None:
        seeds = determinism.seed(1, epoch=3, task="train", rank=2)
        first = drawn()
        saved = json.loads(json.dumps(seeds.state_dict()))
        resumed = determinism.seed(9, rank=2)
        resumed.load_state_dict(saved)

        assert drawn() == first
        assert resumed.streams == seeds.streams

    @pytest.mark.parametrize("change", [{"rank": 1}, {"version": 2}, {"version": None}])
    def test_a_state_that_does_not_fit_is_refused(self, change: dict[str, Any]) -> None:
        seeds = determinism.seed(1)
        state = {**seeds.state_dict(), **change}
        before = random.getstate()

        with pytest.raises(UsageError, match="nothing was seeded"):
            seeds.load_state_dict(state)
        assert random.getstate() == before


def test_a_library_imported_later_is_seeded_on_import() -> None:
    code = "import determinism, json; determinism.seed(1); import numpy; print(json.dumps([numpy.random.rand(), numpy.random.default_rng().random()]))"
    determinism.seed(1)

    assert printed(code) == [np.random.rand(), np.random.default_rng().random()]
    assert printed(code, PYTHONHASHSEED="5") == printed(code)


FORKED = """
import os, random, sys, json
if "plain" not in sys.argv: import determinism; determinism.seed(1)
def child():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, repr(random.random()).encode()); os._exit(0)
    os.wait()
    return float(os.read(reading, 99))
print(json.dumps([random.random(), child(), child()]))
"""


def test_forked_children_draw_their_own_numbers_and_the_same_in_each_run() -> None:
    runs = [printed(FORKED) for _ in range(2)]

    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_without_a_seed_forked_children_differ_from_run_to_run() -> None:
    code = FORKED.replace('"plain" not in sys.argv', "False")

    assert printed(code)[1:] != printed(code)[1:]


def test_started_children_draw_their_own_numbers_and_the_same_in_each_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import determinism, json, multiprocessing, random\ndeterminism.seed(1)\n"
        "def draw(queue, place): queue.put((place, random.random()))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn'); queue = context.Queue()\n"
        "    children = [context.Process(target=draw, args=(queue, place)) for place in range(2)]\n"
        "    [child.start() for child in children]\n"
        "    print(json.dumps(sorted(queue.get() for _ in children)))\n"
    )
    runs = [json.loads(subprocess.check_output([sys.executable, program], text=True, timeout=600)) for _ in range(2)]

    assert runs[0] == runs[1]
    assert len({number for _, number in runs[0]}) == 2

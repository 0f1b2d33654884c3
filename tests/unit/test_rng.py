"""The global generators of Python and NumPy are digested, copied and restored in full."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from collections.abc import Callable

import numpy as np
import numpy.random  # NumPy loads it at first use
import pytest

from determinism import rng


def test_digests_are_named_and_16_bytes() -> None:
    digests = rng.state_digests()
    assert set(digests) == {"python", "numpy"}
    assert all(type(digest) is bytes and len(digest) == 16 for digest in digests.values())


def test_reading_does_not_advance() -> None:
    assert rng.state_digests() == rng.state_digests()


def test_each_draw_changes_only_its_own_digest() -> None:
    before = rng.state_digests()
    random.random()
    after_python = rng.state_digests()
    np.random.rand()
    after_numpy = rng.state_digests()
    assert before["python"] != after_python["python"] and before["numpy"] == after_python["numpy"]
    assert after_python["python"] == after_numpy["python"] and after_python["numpy"] != after_numpy["numpy"]


def test_the_kept_half_of_a_normal_draw_is_part_of_the_state() -> None:
    random.seed(3)
    np.random.seed(3)
    random.gauss(0, 1)
    np.random.randn()
    before = rng.state_digests()
    random.gauss(0, 1)
    np.random.randn()
    after = rng.state_digests()
    assert before["python"] != after["python"] and before["numpy"] != after["numpy"]


def test_the_state_of_numpy_is_read_only_after_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    np.random.seed(3)
    first = rng.state_digests()["numpy"]
    asked: list[bool] = []
    read = rng._numpy_bytes
    monkeypatch.setattr(rng, "_numpy_bytes", lambda state: asked.append(True) or read(state))
    assert rng.state_digests()["numpy"] == first and not asked
    np.random.rand()
    second = rng.state_digests()["numpy"]
    assert asked == [True] and second != first
    np.random.seed(3)
    assert rng.state_digests()["numpy"] == first


@pytest.mark.parametrize("draw", [np.random.rand, np.random.randn, lambda: np.random.shuffle([1, 2, 3])])
def test_each_of_many_draws_changes_the_digest_and_recomputing_it_does_not(draw: Callable[[], object]) -> None:
    np.random.seed(11)
    seen = [rng.state_digests()["numpy"]]
    for _ in range(700):
        draw()
        seen.append(rng.state_digests()["numpy"])
    assert len(set(seen)) == len(seen)
    rng._last_numpy[0] = None
    assert rng.state_digests()["numpy"] == seen[-1]


def test_the_cached_digest_of_pythons_generator_is_up_to_date() -> None:
    choose = random.Random(1)
    state = random.getstate()
    changes: tuple[Callable[[], object], ...] = (
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.seed(choose.randrange(3)),
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.setstate((*state[:2], choose.choice([None, 0.5, 0.25]))),
        lambda: None,
    )
    seen = set()
    try:
        for _ in range(400):
            choose.choice(changes)()
            known = rng.state_digests()["python"]
            rng._last[0] = None
            assert rng.state_digests()["python"] == known
            seen.add(known)
    finally:
        random.setstate(state)
    assert len(seen) > 50


def test_the_state_of_pythons_generator_is_read_only_after_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(3)
    first = rng.state_digests()["python"]
    asked: list[bool] = []
    monkeypatch.setattr(rng, "array", lambda kind, words: asked.append(True) or array(kind, words))
    assert rng.state_digests()["python"] == first and not asked
    random.random()
    assert rng.state_digests()["python"] != first and asked == [True]


def test_a_replacement_for_numpys_bit_generator_has_its_own_digest() -> None:
    before = np.random.get_bit_generator()
    np.random.seed(5)
    first = rng.state_digests()["numpy"]
    try:
        np.random.set_bit_generator(np.random.MT19937(6))
        second = rng.state_digests()["numpy"]
        np.random.set_bit_generator(np.random.PCG64(6))
        third = rng.state_digests()["numpy"]
        np.random.rand()
        assert len({first, second, third, rng.state_digests()["numpy"]}) == 4
    finally:
        np.random.set_bit_generator(before)
    assert rng.state_digests()["numpy"] == first


def test_seeding_gives_the_same_digest_again() -> None:
    random.seed(7)
    np.random.seed(7)
    first = rng.state_digests()
    random.random(), np.random.rand()
    random.seed(7)
    np.random.seed(7)
    assert rng.state_digests() == first


def test_restore_repeats_the_draws() -> None:
    random.gauss(0, 1)
    np.random.randn()
    states = rng.capture()
    digests = rng.state_digests()
    first = [random.gauss(0, 1), random.random(), *np.random.randn(5)]
    second = [random.gauss(0, 1), random.random(), *np.random.randn(5)]
    rng.restore(states)
    assert rng.state_digests() == digests
    third = [random.gauss(0, 1), random.random(), *np.random.randn(5)]
    assert first == third and first != second


def test_numpy_is_not_imported() -> None:
    program = (
        "import sys\n"
        "from determinism import rng\n"
        "rng.restore(rng.capture())\n"
        "assert set(rng.state_digests()) == {'python'}\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_lazily_loaded_generator_is_captured() -> None:
    program = (
        "import numpy\n"
        "from determinism import rng\n"
        "states = rng.capture()\n"
        "first = numpy.random.rand()\n"
        "rng.restore(states)\n"
        "assert numpy.random.rand() == first\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_numpy_imported_after_the_capture_is_left_alone() -> None:
    program = (
        "from determinism import rng\n"
        "states = rng.capture()\n"
        "import numpy.random\n"
        "before = rng.state_digests()\n"
        "rng.restore(states)\n"
        "assert rng.state_digests() == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

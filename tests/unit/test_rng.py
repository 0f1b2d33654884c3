"""The global generators of Python and NumPy are digested, copied and put back in full."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import numpy.random  # NumPy loads it at first use

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

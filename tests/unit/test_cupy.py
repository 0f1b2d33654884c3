"""CuPy is seeded and its arrays are captured if it is present; otherwise nothing mentions it.

CuPy needs a GPU, so a substitute module with the names in use replaces it here: the tests check the calls made to it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import determinism
from determinism.seeds import Streams
from determinism.session import seeding
from determinism.session.enable import seed_settings
from determinism.state import capture, from_bytes

STAND_IN = """
from contextlib import contextmanager
from types import SimpleNamespace
import os
import numpy

class ndarray:
    def __init__(self, values):
        self.values = values

def asnumpy(array):
    return array.values

def asarray(values):
    return ndarray(values)

class RandomState:
    def __init__(self, seed):
        self.value = seed
    def seed(self, value):
        self.value = value

current = [0]

class Device:
    def __init__(self, number=None):
        self.id = current[-1] if number is None else number
    def __enter__(self):
        current.append(self.id)
    def __exit__(self, *error):
        current.pop()

class CUDARuntimeError(RuntimeError):
    pass

def _seed(value):
    states.setdefault(current[-1], RandomState(None)).seed(value)

states = {}
cuda = SimpleNamespace(Device=Device, runtime=SimpleNamespace(getDeviceCount=lambda: 2, CUDARuntimeError=CUDARuntimeError))
random = SimpleNamespace(seed=_seed, RandomState=RandomState, _generator=SimpleNamespace(_random_states=states))
__version__ = "13.4.0"
"""
ADAPTER = "determinism.frameworks.cupy"


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "cupy.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("CUPY_SEED", raising=False)
    put_back = seeding.capture_states()
    yield importlib.import_module("cupy")
    for name in ("cupy", ADAPTER):
        sys.modules.pop(name, None)
    put_back()


def test_devices_in_use_and_future_ones_are_seeded(cupy: ModuleType) -> None:
    cupy.states.update({0: cupy.RandomState(None), 1: cupy.RandomState(None)})
    determinism.seed(1)
    value = Streams(1).integer("cupy", "default", bits=63)

    assert [state.value for state in cupy.states.values()] == [value, value]
    assert os.environ["CUPY_SEED"] == str(value)


def test_seeding_initializes_no_device(cupy: ModuleType) -> None:
    determinism.seed(1)

    assert cupy.states == {}


def test_registered_generators_are_seeded(cupy: ModuleType) -> None:
    own = cupy.RandomState(None)
    determinism.seed(1).register(own, name="own")

    assert own.value == Streams(1).integer("cupy", "own", "own", bits=63)


def test_arrays_are_restored_and_generators_are_a_gap(cupy: ModuleType) -> None:
    state = capture(values=cupy.asarray(np.arange(3.0)))
    found = from_bytes(state.to_bytes())["values"]

    assert isinstance(found, cupy.ndarray) and found.values.tolist() == [0.0, 1.0, 2.0]
    assert any("CuPy" in gap for gap in state.gaps)
    assert state.document["surroundings"]["devices"]["cupy GPU"] == 2


def test_the_seed_is_among_the_settings(cupy: ModuleType) -> None:
    determinism.seed(1)

    assert "seed of cupy.random, on every device" in [setting.name for setting in seed_settings(change=True)]


def test_without_cupy_nothing_mentions_it() -> None:
    put_back = seeding.capture_states()
    determinism.seed(1)
    names = [setting.name for setting in seed_settings(change=True)]
    state = capture()
    put_back()

    assert "cupy" not in sys.modules
    assert [name for name in names if "cupy" in name] == []
    assert "cupy" not in str(state.document).lower()

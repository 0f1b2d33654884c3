"""A state in a file: everything comes back as it was, nothing is executed, damage is said."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from determinism.errors import StateError
from determinism.session.state_file import read, write

VALUES: dict[str, Any] = {
    "text": 'é " $array',
    "numbers": [0, -1, 2**200, True, None, 0.1, -0.0],
    "infinite": (math.inf, -math.inf),
    "pairs": {0: {"step": 5}, (1, "a"): [], "$array": "no array", 2.5: ()},
    "empty": {},
    "python": random.Random(1).getstate(),
    "marks": {"$tuple": [1], "$pairs": 2},
}


def through(folder: Path, contents: dict[str, Any]) -> dict[str, Any]:
    write(folder / "a.state", contents)
    return read(folder / "a.state")


@pytest.mark.parametrize("name", VALUES)
def test_plain_values_come_back(name: str, tmp_path: Path) -> None:
    assert through(tmp_path, {name: VALUES[name]}) == {name: VALUES[name]}
    assert repr(through(tmp_path, {name: VALUES[name]})[name]) == repr(VALUES[name])


def test_what_is_no_number_comes_back(tmp_path: Path) -> None:
    assert math.isnan(through(tmp_path, {"loss": math.nan})["loss"])


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int8", "uint64", "bool", "complex64", ">f8", "datetime64[s]", "U3"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    found = through(tmp_path, {"array": array.T})["array"]

    assert found.dtype == array.dtype and found.shape == array.T.shape
    assert found.tobytes() == np.ascontiguousarray(array.T).tobytes()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"model": [object()]}, r"state\.model\[0\] is a builtins\.object"),
        ({"a": {1: {1, 2}}}, r"set"),
        ({"a": print}, "builtin"),
    ],
)
def test_what_would_need_code_is_refused(value: dict[str, Any], place: str, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=place) as caught:
        write(tmp_path / "a.state", value)

    assert caught.value.identifier == "state-unsavable"
    assert list(tmp_path.iterdir()) == []


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"state\.a is a numpy\.ndarray"):
        write(tmp_path / "a.state", {"a": np.array([object()])})


@pytest.mark.parametrize("length", [0, 7, 8, 40, 200, -1])
def test_a_file_that_is_cut_is_said(length: int, tmp_path: Path) -> None:
    write(tmp_path / "a.state", {"a": np.arange(100), "b": 1})
    data = (tmp_path / "a.state").read_bytes()
    (tmp_path / "a.state").write_bytes(data[:length])

    with pytest.raises(StateError, match="nothing was loaded"):
        read(tmp_path / "a.state")


@pytest.mark.parametrize(
    "document",
    [
        "{", "[1]", json.dumps({"$array": "9", "library": "numpy", "dtype": "<f4", "shape": [1]}),
        json.dumps({"a": {"$array": "0", "library": "os", "dtype": "system", "shape": []}}),
        json.dumps({"a": {"$array": "0", "library": "numpy", "dtype": "O", "shape": [1]}}),
    ],
)  # fmt: skip
def test_a_file_that_was_made_up_is_refused_or_harmless(document: str, tmp_path: Path) -> None:
    from safetensors.numpy import save

    data = save({"0": np.zeros(8, "uint8")}, metadata={"format": "determinism.state/1", "state": document})
    (tmp_path / "a.state").write_bytes(data)

    if document == "[1]":
        assert read(tmp_path / "a.state") == [1]
    else:
        with pytest.raises(StateError):
            read(tmp_path / "a.state")


def test_other_safetensors_files_and_newer_states_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    for metadata in (None, {"format": "pt"}, {"format": "determinism.state/2", "state": "{}"}):
        (tmp_path / "a.state").write_bytes(save({"a": np.zeros(1)}, metadata=metadata))
        with pytest.raises(StateError, match="has the format"):
            read(tmp_path / "a.state")


def test_an_earlier_state_stays_if_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    write(tmp_path / "a.state", {"a": 1})
    with pytest.raises(StateError):
        write(tmp_path / "a.state", {"a": object()})

    assert read(tmp_path / "a.state") == {"a": 1}

"""`determinism.state` without a framework: the values that it saves, the values that it refuses, and damaged files."""

from __future__ import annotations

import collections
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import determinism
from determinism.errors import StateError
from determinism.session import seeding
from determinism.state import capture, from_bytes, load, restore

VALUES: list[Any] = [
    None, True, 3, 2**130, 0.1, -0.0, math.inf, "text", b"\0\xff", [1, [2]], (1, (2,)), {"a": {1: 2, (3, None): [4]}},
    collections.OrderedDict(b=1, a=2), collections.Counter("aab"), np.float32(0.1), np.array(7), np.zeros((0, 3)),
    np.array([1 + 2j]), np.array(["long", "text"]), np.array([1, 2], dtype=">i4"), np.arange(6).reshape(2, 3).T,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_restored_unchanged(value: Any) -> None:
    found = from_bytes(capture(value=value).to_bytes())["value"]

    assert type(found) is type(value)
    assert repr(found) == repr(value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype and found.shape == value.shape


def test_nan_is_restored() -> None:
    assert math.isnan(from_bytes(capture(value=math.nan).to_bytes())["value"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [object()]}, r"part\.a\[0\] is a builtins\.object"),
        (np.array([object()]), r"part is a numpy\.ndarray"),
        (len, r"part is a builtins\.builtin_function"),
        (random.SystemRandom(), r"part is a random\.SystemRandom"),
        (type("Own", (dict,), {})(), r"part is a .*Own"),
    ],
)
def test_values_that_need_code_to_be_restored_are_refused(value: Any, text: str) -> None:
    with pytest.raises(StateError, match=text) as caught:
        capture(part=value)
    assert caught.value.identifier == "state-unsaveable"


def test_generators_of_the_program_continue() -> None:
    mine: list[Any] = [random.Random(1), np.random.RandomState(1), np.random.default_rng(1), np.random.Philox(1)]

    def draw() -> list[Any]:
        return [mine[0].gauss(0, 1), mine[1].randn(), mine[2].standard_normal(), mine[3].random_raw()]

    draw()
    mine[2].integers(0, 9, dtype=np.uint8)  # leaves half a word behind
    state = capture(**{f"part{number}": one for number, one in enumerate(mine)})
    expected = [draw(), draw()]
    restore(from_bytes(state.to_bytes()), **{f"part{number}": one for number, one in enumerate(mine)})

    assert [draw(), draw()] == expected


def test_global_generators_continue_in_another_process(tmp_path: Path) -> None:
    code = "import random, numpy; random.gauss(0, 1); numpy.random.rand()"
    draw = "print(random.gauss(0, 1), random.random(), numpy.random.randn())"
    first = f"import determinism; {code}; determinism.state.capture(step=4).save('here'); {draw}"
    second = (
        f"import determinism, random, numpy; s = determinism.state.load('here'); determinism.state.restore(s); {draw}"
    )

    printed = [
        subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, text=True, timeout=600)
        for program in (first, second)
    ]
    assert printed[0] == printed[1]


def test_generators_made_without_a_seed_continue() -> None:
    restore_states = seeding.capture_states()
    try:
        determinism.seed(1)
        np.random.default_rng()
        state = capture()
        expected = [np.random.default_rng().random() for _ in range(2)]
        determinism.seed(1)
        assert np.random.default_rng().random() not in expected
        restore(from_bytes(state.to_bytes()))

        assert [np.random.default_rng().random() for _ in range(2)] == expected
    finally:
        restore_states()


def test_a_state_describes_its_contents() -> None:
    state = capture(epoch=2, step=7, best=0.5)

    assert (state.epoch, state.step, state["best"], state.parts) == (2, 7, 0.5, ["epoch", "step", "best"])
    assert capture().epoch is None
    assert repr(state).startswith("<determinism state: generators of python, numpy")


def test_state_is_a_module_of_the_package() -> None:
    code = "import determinism; print(determinism.state.capture().step, 'state' in dir(determinism))"

    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=600) == "None True\n"


def test_saving_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    capture(step=1).save(tmp_path / "state")
    capture(step=2).save(tmp_path / "state")

    assert load(tmp_path / "state").step == 2
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_part_may_have_any_name() -> None:
    state = from_bytes(
        capture(**{"__metadata__": np.arange(3), "a.b": {"c": np.zeros(1)}, "a": {"b.c": np.ones(1)}}).to_bytes()
    )

    assert state["__metadata__"].tolist() == [0, 1, 2]
    assert (state["a.b"]["c"][0], state["a"]["b.c"][0]) == (0, 1)


def test_an_unwritable_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        capture().save(tmp_path / "missing" / "state")
    assert caught.value.identifier == "state-unwritable"


def test_every_cut_file_is_refused() -> None:
    data = capture(values=np.arange(40)).to_bytes()
    for length in range(0, len(data), 97):
        with pytest.raises(StateError) as caught:
            from_bytes(data[:length])
        assert caught.value.identifier == "state-unreadable"


@pytest.mark.parametrize("content", [b"", b"no state", b"\x80\x04\x95pickle", b"\xff" * 64, b"PK\x03\x04"])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(StateError) as caught:
        load(tmp_path / "state")
    assert caught.value.identifier == "state-unreadable"
    assert str(tmp_path / "state") in caught.value.message


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="No such file"):
        load(tmp_path / "state")


def changed(data: bytes, change: Any) -> bytes:
    """The same file with a changed document."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["determinism"])
    change(document)
    header["__metadata__"]["determinism"] = json.dumps(document)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def test_a_newer_format_is_refused_by_name() -> None:
    newer = changed(capture().to_bytes(), lambda document: document.update(format="determinism.state/9"))
    with pytest.raises(StateError, match="determinism.state/9") as caught:
        from_bytes(newer)
    assert caught.value.identifier == "state-newer"


@pytest.mark.parametrize(
    "value", [{"array": {"name": "gone"}}, {"code": "1"}, {"tensor": {"name": "x"}, "framework": "os"}, {}]
)
def test_damaged_values_are_refused(value: Any) -> None:
    def damage(document: Any) -> None:
        document["parts"]["part"]["value"] = value

    state = from_bytes(changed(capture(part=1).to_bytes(), damage))
    with pytest.raises(StateError):
        state["part"]


def test_public_names_have_docstrings() -> None:
    for name in determinism.state.__all__:
        assert (getattr(determinism.state, name).__doc__ or "").strip(), name

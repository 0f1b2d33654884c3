"""The script that reproduces an op: what is written into it, and what can never get into it."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from determinism.diagnose.reproducer import NotReproducible, script, write_reproducer
from determinism.frameworks.array_capture import stored

CALL: dict[str, Any] = {
    "op": "aten::gelu",
    "args": [{"tensor": "self"}],
    "kwargs": {"approximate": "tanh"},
    "tensors": {
        "self": {"dtype": "float32", "shape": [2, 3], "stride": [1, 2], "address": 16, "device": "cpu"},
    },
    "written": [],
    "compared": [0],
    "default_generator": None,
    "settings": {
        "num_threads": 2,
        "deterministic_algorithms": False,
        "float32_matmul_precision": "highest",
        "cudnn_deterministic": False,
        "cudnn_benchmark": False,
    },
}
HOSTILE = "'); open('hacked', 'w')\n\"\"\"; open('hacked', 'w') #\\"


def written(call: dict[str, Any] = CALL, **changes: Any) -> str:
    return script(call, **{"origin": "train.py:1", "seen": "", "repeats": 100, "moves": False, **changes})


def with_value(value: Any, *place: str | int) -> dict[str, Any]:
    """The call with a different value in one place."""
    call = copy.deepcopy(CALL)
    at: Any = call
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return call


def returned(source: str) -> str:
    """The source of the expression that the function `call` of a script returns."""
    (function,) = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "call"]
    last = function.body[-1]
    assert isinstance(last, ast.Return) and last.value is not None
    return ast.unparse(last.value)


def shape_of(source: str) -> str:
    """The structure of a script, without its strings and numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


def test_the_call_looks_as_if_written_by_hand() -> None:
    assert returned(written()) == "torch.ops.aten.gelu.default(tensor['self'], approximate='tanh')"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        ({"float": (0.1).hex()}, "0.1"),
        ({"float": "nan"}, "float('nan')"),
        ({"float": "-inf"}, "float('-inf')"),
        ({"complex": ["0x1p+0", "inf"]}, "complex(1.0, float('inf'))"),
        ({"dtype": "bfloat16"}, "torch.bfloat16"),
        ({"device": "cuda"}, "torch.device('cuda')"),
        ({"memory_format": "channels_last"}, "torch.channels_last"),
        ([1, [{"tensor": "self"}, None]], "[1, [tensor['self'], None]]"),
    ],
)
def test_arguments_are_written_as_source(value: Any, expected: str) -> None:
    assert (
        returned(written(with_value(value, "args", 0)))
        == f"torch.ops.aten.gelu.default({expected}, approximate='tanh')"
    )


def test_names_that_are_python_keywords_are_quoted() -> None:
    call = with_value({"from": 1, "to": 2}, "kwargs")
    call["op"] = "aten::is.not"
    function = "getattr(getattr(torch.ops.aten, 'is'), 'not')"
    assert returned(written(call)) == f"{function}(tensor['self'], **{{'from': 1, 'to': 2}})"


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        (with_value(HOSTILE, "kwargs", "approximate"), {}),
        (with_value([HOSTILE], "args"), {}),
        (CALL, {"origin": HOSTILE}),
        (CALL, {"seen": HOSTILE}),
    ],
)
def test_strings_from_the_program_stay_strings(call: dict[str, Any], changes: dict[str, str]) -> None:
    harmless = with_value(["text"], "args") if call["args"] == [HOSTILE] else CALL
    assert shape_of(written(call, **changes)) == shape_of(written(harmless))


def test_no_terminal_control_characters_get_into_the_script() -> None:
    source = written(origin="\x1b[31m\u202etrain.py\udce9", seen="\x07")
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert "\\x1b[31m\\u202etrain.py\\udce9" in constants
    assert "\\x07" in constants
    source.encode()


@pytest.mark.parametrize(
    "place",
    [
        ("op",),
        ("tensors", "self", "dtype"),
        ("tensors", "self", "device"),
        ("tensors", "self", "address"),
        ("tensors", "self", "shape"),
        ("tensors", "self", "stride"),
        ("settings", "num_threads"),
        ("settings", "float32_matmul_precision"),
        ("compared", 0),
        ("args", 0, "tensor"),
        ("default_generator",),
        ("kwargs",),
    ],
)
def test_invalid_names_and_numbers_are_refused(place: tuple[str | int, ...]) -> None:
    with pytest.raises(NotReproducible):
        written(with_value(HOSTILE, *place))


@pytest.mark.parametrize(
    "call",
    [
        with_value({HOSTILE: 1}, "kwargs"),
        with_value({"dtype": HOSTILE}, "args", 0),
        with_value({"device": HOSTILE}, "args", 0),
        with_value({"float": HOSTILE}, "args", 0),
        with_value({HOSTILE: 1}, "args", 0),
        with_value({"generator": "self", "device": HOSTILE}, "args", 0),
        with_value({"generator": HOSTILE, "device": "cpu"}, "default_generator"),
        with_value({"dtype": "float32\n"}, "args", 0),
        with_value("aten::gelu\n", "op"),
        with_value([HOSTILE], "written"),
        with_value({HOSTILE: CALL["tensors"]["self"]}, "tensors"),
        with_value(None, "tensors"),
    ],
)
def test_invalid_calls_are_refused(call: dict[str, Any]) -> None:
    with pytest.raises(NotReproducible, match="wrote something that is not a call"):
        written(call)


def test_the_inputs_are_next_to_the_script(tmp_path: Path) -> None:
    inputs = tmp_path / "kept.safetensors"
    inputs.write_bytes(b"elements")
    path = write_reproducer(tmp_path / "reproducer", inputs, CALL, origin="train.py:1", seen="", repeats=7, moves=True)
    assert path.parent == tmp_path / "reproducer"
    assert (path.parent / "inputs.safetensors").read_bytes() == b"elements"
    assert path.read_text() == written(repeats=7, moves=True)


TENSORFLOW_CALL: dict[str, Any] = {
    "framework": "tensorflow",
    "op": "ConcatV2",
    "arguments": {"values": ["input_0", "input_1"], "axis": "input_2"},
    "attributes": {"N": 2, "T": {"dtype": "bfloat16"}, "scale": {"float": (0.5).hex()}, "shape": {"shape": [2, None]}},
    "tensors": {f"input_{at}": {"dtype": "int32", "shape": []} for at in range(3)},
    "settings": {"intra_op_threads": 2, "inter_op_threads": 0, "op_determinism": True, "tensor_float_32": True},
}


def test_a_tensorflow_call_looks_as_if_written_by_hand() -> None:
    assert returned(written(TENSORFLOW_CALL)) == (
        "tf.raw_ops.ConcatV2(values=[tensor['input_0'], tensor['input_1']], axis=tensor['input_2'], N=2, "
        "T=tf.dtypes.as_dtype('bfloat16'), scale=0.5, shape=tf.TensorShape([2, None]))"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"op": HOSTILE},
        {"arguments": {HOSTILE: "input_0"}},
        {"arguments": {"values": HOSTILE}},
        {"attributes": {HOSTILE: 1}},
        {"attributes": {"T": {"dtype": HOSTILE}}},
        {"attributes": {"T": {"float": HOSTILE}}},
        {"attributes": {"T": {"shape": [HOSTILE]}}},
        {"tensors": {HOSTILE: {"dtype": "int32", "shape": []}}},
        {"settings": {**TENSORFLOW_CALL["settings"], "intra_op_threads": HOSTILE}},
    ],
)
def test_only_names_and_numbers_get_into_a_tensorflow_script(change: dict[str, Any]) -> None:
    with pytest.raises(NotReproducible):
        written({**TENSORFLOW_CALL, **change})


def test_a_string_gets_into_a_tensorflow_script_as_a_literal() -> None:
    source = written({**TENSORFLOW_CALL, "attributes": {"mode": HOSTILE}})
    assert shape_of(source) == shape_of(written({**TENSORFLOW_CALL, "attributes": {"mode": "plain"}}))


@pytest.mark.parametrize(
    ("dtype", "kind", "shape"),
    [
        ("float32", "F32", (2, 3)),
        ("int64", "I64", (2, 3)),
        ("complex64", "F32", (2, 3, 2)),
        ("complex128", "F64", (2, 3, 2)),
        # A type that the file format has no name for is stored as the bytes of its elements.
        ("datetime64[s]", "U8", (2, 3, 8)),
    ],
)
def test_an_array_is_stored_by_its_type_or_else_as_bytes(dtype: str, kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    kept = stored(array)
    assert (kept.dtype, tuple(kept.shape), bytes(kept.elements)) == (kind, shape, array.tobytes())

"""How far apart the values of two further runs are, and what is reported if that cannot be determined."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from determinism.comparison.divergence import Divergence, InputDifference, ValueExample
from determinism.comparison.result import Comparison
from determinism.comparison.tensors import ValueDifference, difference
from determinism.diagnose.confirm import needs_values, with_further_values
from determinism.trace.files import StoredTensor, write_tensors
from determinism.trace.schema import CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE
from determinism.types import Kind
from tests.builders import make_different, make_divergence, make_evidence, make_output


def tensor(dtype: str, values: Any, kind: str) -> StoredTensor:
    array = np.array(values, dtype=kind)
    return StoredTensor(dtype, array.shape, array.tobytes())


def singles(*values: float) -> StoredTensor:
    return tensor("F32", values, "<f4")


def test_equal_tensors_have_no_difference() -> None:
    assert difference(singles(1, 2), singles(1, 2), (2,)) == ValueDifference(0, None, None, None, None)


def test_differences_of_floats_are_measured() -> None:
    above = float(np.nextafter(np.float32(2), np.float32(3)))
    found = difference(tensor("F32", [[1, 2], [3, 4]], "<f4"), tensor("F32", [[1, above], [3, 4.5]], "<f4"), (2, 2))
    assert found is not None
    assert (found.elements_different, found.max_ulp, found.max_abs) == (2, 1 << 20, 0.5)
    assert found.examples == (ValueExample((0, 1), "2", "2.00000024"), ValueExample((1, 1), "4", "4.5"))
    assert found.extent == ((0, 1), (1, 1))


@pytest.mark.parametrize(
    ("first", "second", "max_ulp", "max_abs"),
    [
        (0.0, -0.0, 0, 0.0),
        (1e-45, -1e-45, 2, float(np.float32(1e-45)) * 2),
        (1.0, float("nan"), None, None),
        (1.0, float("inf"), None, None),
    ],
)
def test_special_floats_are_compared(first: float, second: float, max_ulp: int | None, max_abs: float | None) -> None:
    found = difference(singles(first), singles(second), (1,))
    assert found is not None
    assert (found.elements_different, found.max_ulp, found.max_abs) == (1, max_ulp, max_abs)


def test_a_signalling_nan_of_unwritten_memory_is_compared_without_a_warning() -> None:
    found = difference(tensor("F32", [0x7FA00000, 0], "<u4"), tensor("F32", [0x3F800000, 0], "<u4"), (2,))
    assert found is not None
    assert (found.elements_different, found.max_ulp, found.max_abs) == (1, None, None)


def test_bfloat16_values_are_compared() -> None:
    found = difference(tensor("BF16", [0x3F80, 0x4000], "<u2"), tensor("BF16", [0x3F82, 0x4000], "<u2"), (2,))
    assert found == ValueDifference(1, 2, 0.015625, (ValueExample((0,), "1", "1.0156"),), ((0, 0),), 0.0078125)


def test_complex_numbers_are_one_element() -> None:
    found = difference(tensor("F32", [[1, 2], [3, 4]], "<f4"), tensor("F32", [[1, 2], [3.5, 5]], "<f4"), (2,))
    assert found is not None
    assert (found.elements_different, found.max_abs, found.extent) == (1, 1.0, ((1, 1),))
    assert found.examples == (ValueExample((1,), "(3+4j)", "(3.5+5j)"),)


def test_integers_and_scalars_are_compared() -> None:
    found = difference(tensor("I64", 3, "<i8"), tensor("I64", -4, "<i8"), ())
    assert found == ValueDifference(1, None, None, (ValueExample((), "3", "-4"),), None)


def test_types_unknown_to_numpy_are_compared_as_bytes() -> None:
    found = difference(tensor("F8_E4M3", [1, 200], "u1"), tensor("F8_E4M3", [1, 201], "u1"), (2,))
    assert found == ValueDifference(1, None, None, (ValueExample((1,), "bytes c8", "bytes c9"),), ((1, 1),))
    found = difference(tensor("U8", [[1, 2], [3, 4]], "u1"), tensor("U8", [[9, 9], [3, 4]], "u1"), (2,))
    assert found is not None
    assert found[0] == 1
    assert found.examples == (ValueExample((0,), "bytes 0102", "bytes 0909"),)


def test_only_the_first_differing_elements_are_shown() -> None:
    found = difference(singles(*range(9)), singles(*range(1, 10)), (9,))
    assert found is not None and found.examples is not None
    assert (found.elements_different, [one.index for one in found.examples]) == (9, [(0,), (1,), (2,)])


@pytest.mark.parametrize(
    "other",
    [tensor("F64", [1.0], "<f8"), singles(1, 2), tensor("F32", [[1.0]], "<f4"), StoredTensor("F32", (), b"1234")],
)
def test_tensors_of_different_type_or_shape_are_not_compared(other: StoredTensor) -> None:
    assert difference(singles(1), other, (1,)) is None


def divergence(**changes: Any) -> Divergence:
    output = make_output(elements_different=None, max_ulp=None, max_abs=None, repeats=None, distinct=None, shape=(2,))
    return make_divergence(**{"kind": Kind.DATA, "op": "aten::mul.Tensor", "outputs": (output,), **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"op": "determinism::batch"}, True),
        ({"op": "determinism::tolist"}, True),
        ({"op": "determinism::step"}, False),
        ({"op": "inductor::graph"}, False),
        ({"kind": Kind.OP}, True),
        ({"kind": Kind.OP, "inputs_equal": None}, False),
        ({"kind": Kind.OP, "outputs": (make_output(distinct=1),)}, True),
        ({"kind": Kind.OP, "outputs": (make_output(distinct=1), make_output(distinct=2))}, False),
        ({"kind": Kind.OP, "op": "autograd::ProdBackward0"}, False),
        ({"kind": Kind.STRUCTURE}, False),
        ({"kind": None}, False),
        ({"stream": "main.threads"}, False),
    ],
)
def test_which_divergences_need_values(changes: dict[str, Any], expected: bool) -> None:
    assert needs_values(divergence(**changes)) is expected


def compared(
    folder: Path, *tensors: dict[str, StoredTensor] | bytes | None, reason: str | None = None, **changes: Any
) -> Comparison:
    """A comparison with the values of further runs that stored these tensors."""
    kept = []
    for number, content in enumerate(tensors):
        place = folder / f"run-{number}"
        place.mkdir()
        kept.append(place)
        if isinstance(content, bytes):
            (place / CAPTURED_OUTPUTS_FILE).write_bytes(content)
        elif content is not None:
            write_tensors(place / CAPTURED_OUTPUTS_FILE, content, about={})
    comparison = make_different(first_divergence=divergence(), **changes)
    return with_further_values(comparison, kept, reason, {})


def test_values_are_added(tmp_path: Path) -> None:
    found = compared(tmp_path, {"output_0": singles(1, 2)}, {"output_0": singles(1, 4)})
    assert found.first_divergence is not None and found.evidence is not None
    (output,) = found.first_divergence.outputs
    assert (output.elements_different, output.max_abs, output.repeats) == (1, 2.0, None)
    assert (found.evidence.source, found.evidence.folder, found.evidence.note) == ("runs", str(tmp_path), "")


@pytest.mark.parametrize(
    ("first", "second", "note"),
    [
        ({"output_0": singles(1, 2)}, {"output_0": singles(1, 2)}, "Two further runs had equal values here"),
        (
            {"output_0": singles(1, 2)},
            {"output_0": singles(1)},
            "could be compared: they differ in number, shape or type",
        ),
        ({"output_0": singles(1, 2)}, {}, "could be compared"),
        ({"output_0": singles(1, 2)}, None, "not compared, because a further run did not reach this record"),
        ({"output_0": singles(1, 2)}, struct.pack("<Q", 9), "cannot be read"),
    ],
)
def test_a_note_explains_why_no_values_are_given(first: Any, second: Any, note: str, tmp_path: Path) -> None:
    found = compared(tmp_path, first, second)
    assert found.first_divergence == divergence()
    assert found.evidence is not None
    assert note in found.evidence.note


def test_a_note_gives_the_reason_for_keeping_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, reason="its results take 9 MiB, and 1 MiB may be kept")
    assert found.evidence is not None
    assert found.evidence.folder is None
    assert found.evidence.note == (
        "The values were not compared, because its results take 9 MiB, and 1 MiB may be kept."
    )


def test_results_are_compared_even_if_inputs_were_left_out(tmp_path: Path) -> None:
    tensors = ({"output_0": singles(1, 2)}, {"output_0": singles(1, 4)})
    found = compared(tmp_path, *tensors, reason="its inputs are large", evidence=make_evidence())
    assert found.first_divergence is not None and found.evidence is not None
    assert found.first_divergence.outputs[0].max_abs == 2.0
    assert found.evidence.note == "Not all tensors were kept, because its inputs are large."
    assert found.evidence.reproducer == make_evidence().reproducer


def make_input(position: int, path: str | None = None, shape: tuple[int, ...] = (2,)) -> InputDifference:
    return InputDifference(position, path, "float32", shape, "cpu", 2)


def with_inputs(folder: Path, inputs: tuple[InputDifference, ...], paths: dict[str, str | None], *runs: Any) -> Any:
    kept = []
    for number, tensors in enumerate(runs):
        place = folder / f"run-{number}"
        place.mkdir()
        write_tensors(place / CAPTURED_INPUTS_FILE, tensors, about={})
        kept.append(place)
    comparison = make_different(first_divergence=divergence(inputs=inputs))
    comparison = with_further_values(comparison, kept, None, paths)
    assert comparison.first_divergence is not None
    return comparison.first_divergence.inputs


def test_inputs_get_the_values_of_the_tensors_that_differ(tmp_path: Path) -> None:
    first = {"self": singles(1, 2), "mat1": singles(1, 2), "mat2": singles(5, 6)}
    second = {"self": singles(1, 2), "mat1": singles(1, 3), "mat2": singles(5, 9)}
    paths: dict[str, str | None] = {name: name for name in first}
    found = with_inputs(tmp_path, (make_input(1), make_input(2)), paths, first, second)
    assert [(one.path, one.max_abs) for one in found] == [("mat1", 1.0), ("mat2", 3.0)]


def test_the_recorded_path_and_position_take_precedence(tmp_path: Path) -> None:
    runs = [{"input_0": singles(1, 2), "input_3": singles(1, value)} for value in (5, 7)]
    (found,) = with_inputs(tmp_path, (make_input(3, "batch['y']"),), dict.fromkeys(runs[0]), *runs)
    assert (found.path, found.examples[0].second) == ("batch['y']", "7")


def test_equal_inputs_and_inputs_of_another_shape_provide_no_values(tmp_path: Path) -> None:
    first, second = {"self": singles(1, 2), "other": singles(1)}, {"self": singles(1, 2), "other": singles(2)}
    paths: dict[str, str | None] = {"self": "self", "other": "other"}
    (found,) = with_inputs(tmp_path, (make_input(0),), paths, first, second)
    assert (found.path, found.elements_different) == (None, None)

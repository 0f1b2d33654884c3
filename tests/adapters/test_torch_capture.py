"""What an additional run finds at the record it examines: changed inputs, how often an op varies and with which factor, and the values."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism.comparison.tensors import difference as difference_of_stored
from determinism.frameworks.torch.evidence import ALIGNMENT, alignment_of, copied, difference, stored
from determinism.trace.files import read_tensors
from tests.torch_captures import capture

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot race")

COUNT = 524_288
PLACES = torch.arange(COUNT) * 7919 % 61
VALUES = torch.linspace(-3.0, 7.0, COUNT).sin()


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@needs_two_cores
def test_an_op_that_varies_with_threads_does_not_vary_with_one_thread(two_threads: None, tmp_path: Path) -> None:
    for number in range(30):  # on a busy machine, the two threads may run in turns for a while
        (output,) = capture(
            lambda: torch.zeros(61).index_put_((PLACES,), VALUES, accumulate=True),
            "aten::index_put_", tmp_path / str(number), repeats=20, seconds=3.0,
        )["outputs"]  # fmt: skip
        if output["distinct"] > 1:
            break
    assert output["distinct"] > 1
    assert (output["distinct_one_thread"], output["distinct_alignments"]) == (1, 1)
    assert "distinct_filled_memory" not in output
    assert torch.get_num_threads() == 2
    kept = read_tensors(tmp_path / str(number) / "kept" / "outputs.safetensors")
    found = difference_of_stored(kept["output_0"], kept["output_0_other"], (61,))
    assert found is not None
    assert found.elements_different == output["elements_different"]
    assert [list(one.index) for one in found.examples or ()] == [one["index"] for one in output["examples"]]


def test_an_op_that_reads_uninitialized_memory_does_not_vary_in_filled_memory(tmp_path: Path) -> None:
    matrix, right = torch.randn(30, 20), torch.randn(30, 3)
    found = capture(lambda: torch.linalg.lstsq(matrix, right), "aten::linalg_lstsq", tmp_path, repeats=60, seconds=3.0)
    solution = found["outputs"][0]
    assert solution["distinct"] > 1
    assert solution["distinct_one_thread"] > 1
    assert solution["distinct_filled_memory"] == 1
    assert solution["distinct_alignments"] == 1


def test_an_op_that_varies_with_alignment_is_recognized(tmp_path: Path) -> None:
    with torch.library._scoped_library("determinism_test", "DEF") as library:
        library.define("place(Tensor values) -> Tensor")
        library.impl("place", lambda values: torch.tensor(alignment_of(values)), "CPU")
        values = torch.arange(40.0)[3:]
        (output,) = capture(
            lambda: torch.ops.determinism_test.place(values), "determinism_test::place", tmp_path, seconds=2.0
        )["outputs"]  # fmt: skip
    assert output["distinct"] == 1
    assert output["distinct_alignments"] == 7
    assert "distinct_one_thread" not in output
    kept = read_tensors(tmp_path / "kept" / "outputs.safetensors")
    assert int.from_bytes(kept["output_0"].elements, "little") == alignment_of(values)


def test_an_op_that_does_not_vary_has_one_result(tmp_path: Path) -> None:
    found = capture(lambda: VALUES[:99].exp(), "aten::exp", tmp_path, seconds=2.0)
    assert found["changed_inputs"] == []
    assert found["repeats"] >= 20
    assert found["outputs"] == [{"position": 0, "distinct": 1, "distinct_alignments": 1}]


def test_an_op_is_repeated_on_copies_that_other_threads_cannot_write(tmp_path: Path) -> None:
    values, ended = torch.zeros(50_000), threading.Event()
    array = values.numpy()

    def write() -> None:
        while not ended.is_set():
            array[:] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = capture(lambda: values.sin(), "aten::sin", tmp_path, repeats=50)
    finally:
        ended.set()
        writer.join()
    assert found["repeats"] >= 2
    assert found["outputs"][0]["distinct"] == 1
    # The inputs that are kept are those of the repeats.
    kept = [read_tensors(tmp_path / "kept" / f"{name}.safetensors") for name in ("inputs", "outputs")]
    inputs = torch.frombuffer(bytearray(kept[0]["self"].elements), dtype=torch.float32)
    assert bytes(kept[1]["output_0"].elements) == bytes(stored(inputs.sin()).elements)


def test_a_draw_is_repeated_only_if_no_other_thread_can_use_its_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(folder: Path, generator: torch.Generator | None) -> dict[str, Any]:
        if generator is None:
            return capture(lambda: torch.rand(9), "aten::rand", folder)
        return capture(lambda: torch.rand(9, generator=generator), "aten::rand.generator", folder)

    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        refused, own = drawn(tmp_path / "shared", None), drawn(tmp_path / "own", torch.Generator())
    finally:
        ended.set()
        other.join()
    assert (refused["repeats"], "other threads" in refused["saved"]["reason"]) == (0, True)
    assert [output["distinct"] for output in own["outputs"]] == [1]
    # Earlier tests in this process may have left threads running.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert [output["distinct"] for output in drawn(tmp_path / "alone", None)["outputs"]] == [1]


def test_memory_changed_behind_the_framework_is_a_changed_input(tmp_path: Path) -> None:
    def program() -> None:
        values = torch.ones(3) * 2
        values.numpy()[1] = 7
        values.exp()

    found = capture(program, "aten::exp", tmp_path)
    assert (found["changed_inputs"], found["outputs"]) == ([0], [])


def test_without_repeats_only_values_are_kept(tmp_path: Path) -> None:
    def program() -> None:
        values = torch.ones(3) * 2
        values.numpy()[1] = 7
        values.add_(1)

    found = capture(program, "aten::add_.Tensor", tmp_path, repeats=0)
    assert (found["changed_inputs"], found["repeats"], found["saved"]["left_out"]) == ([0], 0, None)
    kept = [read_tensors(tmp_path / "kept" / f"{name}.safetensors") for name in ("inputs", "outputs")]
    assert bytes(kept[0]["self"].elements) == bytes(stored(torch.tensor([2.0, 7.0, 2.0])).elements)
    assert bytes(kept[1]["output_0"].elements) == bytes(stored(torch.tensor([3.0, 8.0, 3.0])).elements)


def test_large_inputs_are_left_out_of_values(tmp_path: Path) -> None:
    found = capture(lambda: VALUES.sum(), "aten::sum", tmp_path, repeats=0, most_bytes=1 << 20)
    assert found["saved"]["left_out"] == "its inputs take 2.0 MiB, and 1.0 MiB may be kept"
    assert not (tmp_path / "kept" / "inputs.safetensors").exists()
    assert list(read_tensors(tmp_path / "kept" / "outputs.safetensors")) == ["output_0"]


def test_values_that_leave_the_framework_are_kept(tmp_path: Path) -> None:
    capture(lambda: torch.ones(2).expand(3, 2).tolist(), "determinism::tolist", tmp_path, repeats=0)
    (output,) = read_tensors(tmp_path / "kept" / "outputs.safetensors").values()
    assert (output.shape, bytes(output.elements)) == ((3, 2), bytes(stored(torch.ones(6)).elements))


def test_a_record_of_another_thread_is_not_captured(tmp_path: Path) -> None:
    def program() -> None:
        other = threading.Thread(target=lambda: torch.ones(5).exp())
        other.start()
        other.join()
        torch.ones(3).exp()

    capture(program, "aten::exp", tmp_path, repeats=0)
    assert read_tensors(tmp_path / "kept" / "inputs.safetensors")["self"].shape == (3,)


def test_a_batch_is_kept(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader([(torch.tensor(float(n)), n) for n in range(4)], batch_size=2)
    capture(lambda: list(loader), "determinism::batch", tmp_path, repeats=0, phase="data", occurrence=1)
    kept = read_tensors(tmp_path / "kept" / "outputs.safetensors")
    assert {name: bytes(one.elements) for name, one in kept.items()} == {
        "output_0": bytes(stored(torch.tensor([2.0, 3.0])).elements),
        "output_1": bytes(stored(torch.tensor([2, 3])).elements),
    }


@pytest.mark.parametrize(
    ("program", "op", "reason"),
    [
        (lambda: torch.empty(3), "aten::empty.memory_format", "the op leaves memory as it was"),
        (
            lambda: torch.randn(3).to_sparse().sin(),
            "aten::sin",
            "its argument self is a sparse, quantized or nested tensor",
        ),
    ],
)
def test_a_call_that_cannot_be_kept_has_a_reason(program: Any, op: str, reason: str, tmp_path: Path) -> None:
    saved = capture(program, op, tmp_path, repeats=2)["saved"]
    assert (saved["call"], saved["reason"]) == (None, reason)


def test_an_op_that_fails_on_copies_is_reported_with_its_error(tmp_path: Path) -> None:
    calls = []

    def once(values: torch.Tensor) -> torch.Tensor:
        calls.append(values)
        if len(calls) == 1:
            raise ValueError("only once")
        return values * 2

    with torch.library._scoped_library("determinism_test", "DEF") as library:
        library.define("once(Tensor values) -> Tensor")
        library.impl("once", once, "CPU")
        found = capture(lambda: torch.ops.determinism_test.once(VALUES[:3]), "determinism_test::once", tmp_path)
    assert found["saved"]["reason"] == "running it failed (ValueError: only once)"
    assert found["outputs"] == []


LAYOUTS = {
    "contiguous": lambda: torch.randn(3, 4),
    "offset": lambda: torch.randn(9)[5:],
    "transposed": lambda: torch.randn(3, 4).t(),
    "gaps": lambda: torch.randn(8, 6)[1::3, ::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 5),
    "overlapping": lambda: torch.randn(9).unfold(0, 4, 2),
    "single": lambda: torch.tensor(3.0),
    "empty": lambda: torch.randn(0, 3),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "bool": lambda: torch.randn(5) > 0,
    "bfloat16": lambda: torch.randn(7).bfloat16()[1:],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_have_the_layout_of_the_originals(name: str) -> None:
    tensor = LAYOUTS[name]()
    for shift in (0, 1, 5):
        copy = copied(tensor, shift=shift)
        assert torch.equal(copy, tensor.resolve_conj())
        assert (copy.stride(), copy.dtype, copy.data_ptr() == tensor.data_ptr()) == (
            tensor.stride(),
            tensor.dtype,
            not copy.numel(),
        )
        if copy.numel():
            assert alignment_of(copy) == (alignment_of(tensor) + shift * tensor.element_size()) % ALIGNMENT


def test_a_tensor_passed_twice_is_copied_once() -> None:
    one, other = torch.ones(3), torch.ones(3)
    (first, second), named = copied([(one, other), {"out": one}])
    assert first is named["out"]
    assert first is not second


PAIRS = {
    "float32": (torch.tensor([[1.0, 2.0], [3.0, -0.0]]), torch.tensor([[1.0, 2.1], [3.0, 0.0]])),
    "float64": (torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([0.1, 0.3], dtype=torch.float64)),
    "half": (torch.tensor([0.1, 7.0]).half(), torch.tensor([0.2, 7.0]).half()),
    "bfloat16": (torch.tensor([0.1, 7.0]).bfloat16(), torch.tensor([0.1, -7.1]).bfloat16()),
    "complex": (torch.tensor([1 + 2j, 3j]), torch.tensor([1 + 2j, 1 + 4j])),
    "nan": (torch.tensor([1.0, float("nan")]), torch.tensor([2.0, 1.0])),
    "infinite": (torch.tensor([1.0, float("inf")]), torch.tensor([2.0, 1.0])),
    "integers": (torch.tensor([1, 2]), torch.tensor([1, -9])),
    "bool": (torch.tensor([True, False]), torch.tensor([True, True])),
    "single": (torch.tensor(1.0), torch.tensor(1.5)),
    "equal": (torch.tensor([1.0]), torch.tensor([1.0])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_tensors_in_memory_and_in_files_are_compared_equally(name: str) -> None:
    first, second = PAIRS[name]
    in_memory = difference(first, second)
    in_files = difference_of_stored(stored(first), stored(second), tuple(first.shape))
    assert in_files is not None
    examples = (
        None
        if in_files.examples is None
        else [{"index": list(one.index), "first": one.first, "second": one.second} for one in in_files.examples]
    )
    extent = None if in_files.extent is None else [list(ends) for ends in in_files.extent]
    assert in_memory == {**in_files._asdict(), "examples": examples, "extent": extent}
    assert bool(in_memory["elements_different"]) is (name != "equal")

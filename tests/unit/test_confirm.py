"""How a confirming run changes a divergence that was blamed on an op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determinism.comparison.divergence import Divergence, ValueExample
from determinism.diagnose.confirm import confirmed, executions, needs_confirmation
from determinism.trace.opening import open_trace
from determinism.types import Kind
from tests.builders import make_different, make_divergence, make_output
from tests.traces import TraceBuilder

VARIED = {
    "position": 0,
    "distinct": 5,
    "elements_different": 2,
    "max_ulp": 3,
    "max_abs": 0.5,
    "examples": [{"index": [1, 2], "first": "0.5", "second": "1"}],
    "extent": [[1, 4], [2, 2]],
}


def unseen(**changes: Any) -> Any:
    """An output of which only the shape and type are known."""
    return make_output(
        **{"elements_different": None, "max_ulp": None, "max_abs": None, "repeats": None, "distinct": None, **changes}
    )


def looked_at(*outputs: dict[str, Any], changed: tuple[int, ...] = (), of: tuple[Any, ...] = (unseen(),)) -> Divergence:
    comparison = make_different(first_divergence=make_divergence(inputs_equal=None, outputs=of))
    comparison = confirmed(comparison, {"changed_inputs": list(changed), "repeats": 100, "outputs": list(outputs)})
    assert comparison.first_divergence is not None
    assert comparison.diagnosis.missed_in_confirming_run is False
    return comparison.first_divergence


def test_an_op_that_varied_is_confirmed() -> None:
    first = looked_at(VARIED)
    assert (first.kind, first.inputs_equal) == (Kind.OP, True)
    (output,) = first.outputs
    assert (output.repeats, output.distinct, output.elements_different, output.max_ulp, output.max_abs) == (
        100,
        5,
        2,
        3,
        0.5,
    )
    assert output.examples == (ValueExample((1, 2), "0.5", "1"),)
    assert output.extent == ((1, 4), (2, 2))


@pytest.mark.parametrize(
    ("counts", "detail"),
    [
        ({}, "gave different results within one run."),
        ({"distinct_one_thread": 1, "distinct_alignments": 1}, "but only one with one thread."),
        ({"distinct_one_thread": 4}, "also with one thread."),
        ({"distinct_one_thread": 4, "distinct_filled_memory": 3}, "also with one thread."),
        ({"distinct_one_thread": 4, "distinct_filled_memory": 1}, "it reads uninitialized memory."),
        ({"distinct": 1, "distinct_alignments": 2}, "The op varies with the alignment of its inputs in memory"),
        ({"distinct": 1, "distinct_alignments": 1}, "repeating it gave only one result."),
    ],
)
def test_the_detail_says_what_the_op_varies_with(counts: dict[str, int], detail: str) -> None:
    first = looked_at({**VARIED, **counts})
    assert detail in first.detail
    (output,) = first.outputs
    assert {name: getattr(output, name) for name in counts} == counts


def test_outputs_are_matched_by_position() -> None:
    others = ({"position": 0, "distinct": 1}, {**VARIED, "position": 2})
    first = looked_at(*others, of=(unseen(position=2), unseen(position=3)))
    assert [output.distinct for output in first.outputs] == [5, None]


def test_the_detail_says_that_the_op_was_not_repeated() -> None:
    first = looked_at()
    assert (first.inputs_equal, first.outputs) == (True, (unseen(),))
    assert first.detail.endswith("it was not repeated.")


def test_a_changed_input_is_a_mutation() -> None:
    first = looked_at(changed=(1,))
    assert (first.kind, first.inputs_equal) == (Kind.MUTATION, False)


def fused(*ops: tuple[str, int]) -> list[dict[str, Any]]:
    return [
        {"op": op, "file": "/work/train.py", "line": line, "function": "forward", "code": "code"} for op, line in ops
    ]


@pytest.mark.parametrize(
    ("ops", "inside", "end"),
    [
        ([("aten::sin", 7), ("aten::mul", 7)], None, "from sin and mul (train.py:7)."),
        ([("aten::sin", 7), ("aten::index_add", 8)], None, "from sin (train.py:7), index_add (train.py:8)."),
        (
            [("aten::sin", 7), ("aten::index_add", 8)],
            1,
            "Of these, index_add adds to the same elements from several threads, in any order.",
        ),
        ([("aten::index_add", 8)], 0, "from index_add (train.py:8)."),
    ],
)
def test_the_ops_in_a_fused_kernel_are_listed_by_line(ops: list[tuple[str, int]], inside: int | None, end: str) -> None:
    places = fused(*ops)
    place = None if inside is None else {**places[inside], "inside": []}
    found = {"changed_inputs": [], "repeats": 9, "outputs": [VARIED], "fused": places, "inside": place}
    first = confirmed(make_different(first_divergence=make_divergence(outputs=(unseen(),))), found).first_divergence
    assert first is not None
    assert first.detail.endswith(end)
    assert (first.inside is not None) == (inside is not None)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"kernel": {"instruction": "ffi_call.1", "opcode": "custom-call", "made_from": []}},
            "ffi_call.1 (custom-call) of the optimised program is the first that varies.",
        ),
        (
            {
                "kernel": {
                    "instruction": "sin_add_fusion",
                    "opcode": "fusion",
                    "made_from": fused(("jax::sin", 7), ("jax::add", 8)),
                }
            },
            "first that varies. XLA made it from sin (train.py:7), add (train.py:8).",
        ),
        (
            {"no_kernel": "it runs on 2 devices"},
            "the kernels may differ from those of the program. The program's own kernels could not be examined one "
            "by one: it runs on 2 devices.",
        ),
        (
            {"no_kernel": None},
            "the kernels may differ from those of the program. None of the program's own kernels varied when it was run again.",
        ),
    ],
    ids=["kernel", "fusion", "not cut", "equation only"],
)
def test_the_detail_says_how_the_place_in_a_compiled_function_was_found(how: dict[str, Any], said: str) -> None:
    (place,) = fused(("jax::sin", 7))
    found = {"changed_inputs": [], "repeats": 9, "outputs": [VARIED], "inside": {**place, "inside": [], **how}}
    first = confirmed(make_different(first_divergence=make_divergence(outputs=(unseen(),))), found).first_divergence

    assert first is not None
    assert first.detail.endswith(said)


@pytest.mark.parametrize(
    ("device", "ops", "said"),
    [
        (
            "cuda",
            ["jax::sin", "jax::scatter-add", "jax::select_and_scatter_add"],
            "known to vary on a GPU: scatter-add (train.py:8), select_and_scatter_add (train.py:9).",
        ),
        ("cpu", ["jax::sin", "jax::scatter-add"], None),
        ("cuda", ["jax::sin", "jax::psum"], None),
        (
            "GPU:0",
            ["tf::Sin", "tf::UnsortedSegmentSum", "tf::MaxPoolGrad"],
            "known to vary on a GPU: UnsortedSegmentSum (train.py:8), MaxPoolGrad (train.py:9).",
        ),
        ("CPU:0", ["tf::UnsortedSegmentSum"], None),
        # TensorFlow's own kernel of the op with this name varies, but XLA's does not.
        ("GPU:0", ["tf::Sin", "tf::BiasAddGrad", "tf::GatherV2"], None),
    ],
)
def test_ops_in_a_compiled_function_known_to_vary_on_the_device_are_named(
    device: str, ops: list[str], said: str | None
) -> None:
    places = [
        {"op": op, "file": "/home/ada/train.py", "line": 7 + at, "function": "step", "code": "", "inside": []}
        for at, op in enumerate(ops)
    ]
    found = {"changed_inputs": [], "repeats": 9, "outputs": [{**VARIED, "distinct": 1}], "made_of": places}
    before = make_different(first_divergence=make_divergence(op="jax::jit(step)", outputs=(unseen(device=device),)))
    first = confirmed(before, found).first_divergence
    assert first is not None
    assert ("known to vary" in first.detail) == (said is not None)
    assert said is None or first.detail.endswith(said)


def test_a_run_that_did_not_reach_the_record_is_noted() -> None:
    before = make_different()
    after = confirmed(before, None)
    assert after.diagnosis.missed_in_confirming_run is True
    assert after.first_divergence == before.first_divergence


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"op": "aten::mm"}, True),
        ({"op": "aten::mm", "kind": Kind.DATA}, False),
        ({"op": "aten::mm", "stream": "main.threads", "thread": "loader"}, True),
        ({"op": "aten::mm", "stream": "main.pool-0"}, False),
        ({"op": "inductor::graph"}, False),
        ({"op": "c10d::allreduce_"}, False),
    ],
)
def test_which_divergences_are_confirmed(changes: dict[str, Any], expected: bool) -> None:
    assert needs_confirmation(make_divergence(**changes)) is expected
    assert needs_confirmation(None) is False


def test_executions_of_an_op_at_its_line_are_counted(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "run")
    for step in range(3):
        here = builder.add("aten::index_put", outputs=[f"{step}"], site=("/work/train.py", 7))
        builder.add("aten::index_put", outputs=["elsewhere"], site=("/work/train.py", 8))
        builder.add("aten::add", outputs=["another op"], site=("/work/train.py", 7))
        builder.step()
    trace = open_trace(builder.close())
    assert executions(make_divergence(op="aten::index_put", record=here), [trace]) == 3
    assert executions(make_divergence(op="aten::index_put", record=here, kind=Kind.DATA), [trace]) == 1
    assert executions(make_divergence(op="aten::index_put", record=here, process="elsewhere"), [trace]) == 1
    assert executions(make_divergence(op="aten::index_put", record=here, records_of=1), [trace]) == 1

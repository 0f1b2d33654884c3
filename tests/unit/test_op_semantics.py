"""What is known of an op by its name."""

from __future__ import annotations

import pytest

from determinism.trace.names import OpSemantics, framework_of, semantics_of


@pytest.mark.parametrize(
    ("op", "meanings"),
    [
        (
            "aten::copy_",
            OpSemantics.COPIES | OpSemantics.COPIES_INTO | OpSemantics.IN_PLACE | OpSemantics.KEEPS_GRADIENT,
        ),
        ("aten::add.Tensor", OpSemantics.NONE),
        ("aten::add_.Tensor", OpSemantics.IN_PLACE | OpSemantics.ADDS_TO_GRADIENT),
        ("aten::add_.Scalar", OpSemantics.IN_PLACE),
        (
            "aten::_foreach_mul_.Scalar",
            OpSemantics.IN_PLACE | OpSemantics.TAKES_EACH_BY_ITSELF | OpSemantics.CLEARS_BY_ZERO,
        ),
        ("aten::empty.memory_format", OpSemantics.LEAVES_UNWRITTEN),
        ("aten::set_.source_Storage", OpSemantics.IN_PLACE | OpSemantics.REBINDS_STORAGE),
        ("aten::masked_fill_.Scalar", OpSemantics.IN_PLACE | OpSemantics.CHOOSES_ELEMENTS),
        ("c10d::allreduce_", OpSemantics.IN_PLACE | OpSemantics.COLLECTIVE | OpSemantics.SENDS),
        ("c10d::barrier", OpSemantics.COLLECTIVE),
        (
            "c10d::recv_any_source_",
            OpSemantics.IN_PLACE | OpSemantics.COLLECTIVE | OpSemantics.ONLY_RECEIVES | OpSemantics.RECEIVES_FROM_ANY,
        ),
        ("tf::IteratorGetNext", OpSemantics.TAKES_ELEMENT),
        ("tf::MatMul+BiasAdd+Relu", OpSemantics.NONE),
        ("jax::jit_step", OpSemantics.COMPILED_PROGRAM),
        ("determinism::batch", OpSemantics.COPIES | OpSemantics.NOT_ONE_OP),
        ("autograd::ProdBackward0", OpSemantics.NOT_ONE_OP),
        ("mine::copy", OpSemantics.NONE),
    ],
)
def test_what_an_op_does(op: str, meanings: OpSemantics) -> None:
    assert semantics_of(op) == meanings


def test_the_framework_of_an_op() -> None:
    assert [framework_of(op) for op in ("tf::MatMul", "jax::step", "aten::mm", "mine::op")] == [
        "tensorflow", "jax", "torch", "torch",
    ]  # fmt: skip

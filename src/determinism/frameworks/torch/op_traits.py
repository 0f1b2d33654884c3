"""What is known of an op before it runs: what it writes, what it only looks at, whether it draws random numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from determinism.frameworks.torch import collectives
from determinism.frameworks.torch.formulas import formulas_of

_IGNORED_NAMESPACES = {"profiler", "prim", "prims_meta", "_inductor_test"}

_METADATA = {
    "is_pinned", "size", "stride", "dim", "numel", "storage_offset", "is_contiguous", "is_same_size", "is_complex",
    "is_floating_point", "is_inference", "is_neg", "is_conj", "is_signed", "is_set_to", "is_strides_like_format",
    "is_non_overlapping_and_dense", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous",
    "sym_constrain_range", "sym_constrain_range_for_size", "_has_compatible_shallow_copy_type", "dense_dim",
    "sparse_dim", "is_coalesced", "_is_zerotensor", "qscheme", "_version", "output_nr", "_nested_tensor_size",
    "set_", "_assert_tensor_metadata", "result_type", "can_cast", "promote_types", "_debug_has_internal_overlap",
    "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "is_leaf", "requires_grad_", "retain_grad", "_backward",
    "record_stream", "set_data", "_fw_primal", "_make_dual",
}  # fmt: skip
"""They read no element, so nothing can differ through them but shapes, which records hold anyway."""

_VIEWS_WITHOUT_ANNOTATION = {"_unsafe_view", "_reshape_alias"}

_UNINITIALIZED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "resize_", "resize_as_", "_resize_output_",
}  # fmt: skip
"""Their outputs hold what was in memory before (or stay partly unwritten)."""

_UNVALUED_INPUTS = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "resize_", "resize_as_", "_shape_as_tensor",
}  # fmt: skip
"""They look at the shape, dtype and device of their inputs, never at elements."""

_WHOLE_WRITES = {
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "_foreach_zero_", "_foreach_copy_", "fill", "zero", "resize_", "resize_as_",
}  # fmt: skip
"""In-place ops that replace their whole target without reading it."""

_PARTIAL_WRITES = {
    "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_",
    "put_", "fill_diagonal_", "triu_", "tril_",
}  # fmt: skip
"""In-place ops that replace the elements that their arguments choose, and leave the others as they are."""

_HIDDEN_WRITES = {
    "native_batch_norm": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
}
"""Writes that the schema does not declare: positions of the tensors, and of the flag that must be True."""

WORKSPACE_OUTPUTS = {
    "aten::mkldnn_rnn_layer": frozenset({3}),
    "aten::_ctc_loss": frozenset({1}),
    "aten::_cudnn_rnn": frozenset({4}),
    "aten::miopen_rnn": frozenset({4}),
    "aten::cudnn_batch_norm": frozenset({3}),
    "aten::_batch_norm_with_update": frozenset({3}),
    "aten::_batch_norm_no_update": frozenset({3}),
}
"""Outputs that hold scratch memory for the backward: their bytes differ in every run and mean nothing.
`mkldnn_rnn_layer` and `_ctc_loss` were measured with torch 2.13 on the CPU; the others are documented as reserve spaces."""


COPIES = frozenset({"aten::copy_", "aten::_to_copy"})
"""They may return before the copy is made; see `late_copies`."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """How an op is recorded."""

    name: str
    """Qualified overload name, such as `aten::add.Tensor`."""
    is_ignored: bool
    is_view: bool
    is_view_or_copy: bool
    """Whether an op needs a second look before it is recorded; one question for all others."""
    is_uninitialized: bool
    is_collective: bool
    """Its outputs may not be there yet when it returns, as where processes exchange tensors."""
    is_lift: bool
    """Makes a tensor of the framework out of memory from outside."""
    draws: bool
    has_unvalued_inputs: bool
    written: tuple[int | str, ...]
    """Positions or names of the arguments that the op writes."""
    reads_written: bool
    """Whether the previous content of a written argument takes part in the result."""
    keeps_unwritten: bool
    """Whether elements of a written argument can stay as they were."""
    accumulate_at: int | None
    """Position of the flag `accumulate`, which makes a partial write read its target."""
    root_at: int | None
    """Position of the rank that alone reads what a collective writes."""
    hidden_written: tuple[int, ...]
    hidden_flag: int
    workspaces: frozenset[int]
    argument_names: tuple[str, ...]
    returns_target: bool
    """An in-place op: writes its first argument, and returns that."""
    has_formula_node: bool
    """Its backward may take another formula while a mode is active."""
    asks_for_modes: bool
    """Its backward or its forward-mode derivative may."""
    needs_settings: bool
    """Its kernel runs ops that take account of autocast or lazy conjugation."""


def traits_of(op: Any) -> OpTraits:
    """Work out the traits of an `OpOverload` from its schema, its tags and the tables above."""
    schema = op._schema
    namespace, _, base = schema.name.partition("::")
    arguments = schema.arguments
    written: list[int | str] = []
    positional = 0
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else positional)
        if not argument.kwarg_only:
            positional += 1
    written += collectives.targets(schema.name)
    returns_alias = any(r.alias_info is not None for r in schema.returns)
    is_aten = namespace == "aten"
    is_view = (not written and returns_alias and base != "lift_fresh") or (
        is_aten and base in _VIEWS_WITHOUT_ANNOTATION
    )
    is_out = any(a.is_out for a in arguments)
    is_whole = is_out or schema.name in collectives.FILLED or (is_aten and base in _WHOLE_WRITES)
    is_partial = is_aten and base in _PARTIAL_WRITES and "reduce" not in schema.overload_name
    accumulate = next((i for i, a in enumerate(arguments) if a.name == "accumulate"), None)
    hidden, flag = _HIDDEN_WRITES.get(base, ((), 0)) if is_aten else ((), 0)
    name = op.name()
    formulas = formulas_of(torch.__version__)
    return OpTraits(
        name=name,
        is_ignored=namespace in _IGNORED_NAMESPACES or (is_aten and base in _METADATA),
        is_view=is_view,
        is_view_or_copy=is_view or schema.name in COPIES,
        is_uninitialized=is_aten and base in _UNINITIALIZED,
        is_collective=collectives.is_collective(schema.name),
        is_lift=schema.name == "aten::lift_fresh",
        draws=torch.Tag.nondeterministic_seeded in op.tags,
        has_unvalued_inputs=(is_aten and base in _UNVALUED_INPUTS) or schema.name in collectives.WITHOUT_VALUES,
        written=tuple(written),
        reads_written=not (is_whole or is_partial),
        keeps_unwritten=is_partial,
        accumulate_at=accumulate if is_partial else None,
        root_at=collectives.root_at(schema.name),
        hidden_written=hidden,
        hidden_flag=flag,
        workspaces=WORKSPACE_OUTPUTS.get(schema.name, frozenset()),
        argument_names=tuple(a.name for a in arguments),
        returns_target=written == [0] and len(schema.returns) == 1 and returns_alias and not hidden,
        has_formula_node=formulas.makes_node(schema.name),
        asks_for_modes=formulas.makes_node(schema.name) or schema.name in formulas.forward_mode,
        needs_settings=schema.name in formulas.conjugation_inside | formulas.autocast_inside,
    )


HIGHER_ORDER = OpTraits(
    name="higher-order operator",
    is_ignored=True,
    is_view=False,
    is_view_or_copy=False,
    is_uninitialized=False,
    is_collective=False,
    is_lift=False,
    draws=False,
    has_unvalued_inputs=False,
    written=(),
    reads_written=False,
    keeps_unwritten=False,
    accumulate_at=None,
    root_at=None,
    hidden_written=(),
    hidden_flag=0,
    workspaces=frozenset(),
    argument_names=(),
    returns_target=False,
    has_formula_node=False,
    asks_for_modes=False,
    needs_settings=False,
)
"""An operator that takes functions: not recorded itself, as the ops inside it are."""

OPAQUE = replace(HIGHER_ORDER, name="opaque", is_ignored=False)
"""Something that is no op, of which only inputs and outputs are known."""

"""The semantics of ops on which comparing runs depends: the only module that knows ops of frameworks by name.

An adapter writes them into the trace next to the name of the op; readers of a trace know only what it says of an op.
"""

from __future__ import annotations

from enum import Flag, auto
from functools import lru_cache
from typing import Self


class OpSemantics(Flag):
    """Properties of an op on which comparing and diagnosing depend."""

    NONE = 0
    COPIES = auto()
    """It only moves values, so equal results mean equal inputs."""
    COPIES_INTO = auto()
    """It copies into an existing tensor."""
    IN_PLACE = auto()
    """It changes one of its arguments."""
    CHOOSES_ELEMENTS = auto()
    """It writes only the elements that its arguments select, and leaves the rest of the view unchanged."""
    TAKES_EACH_BY_ITSELF = auto()
    """It does the same to each of several tensors, independently of the others."""
    REBINDS_STORAGE = auto()
    """It makes a tensor refer to another storage, and computes nothing."""
    LEAVES_UNWRITTEN = auto()
    """It returns uninitialized memory."""
    COLLECTIVE = auto()
    """It exchanges tensors with other processes; outputs that are not ready when it returns have no digest."""
    SENDS = auto()
    """It sends its inputs to other processes."""
    ONLY_RECEIVES = auto()
    """It only fills the tensors that it is passed."""
    RECEIVES_FROM_ANY = auto()
    """It receives from whichever process sends first."""
    MOVES_ROWS = auto()
    """It may move values from one row of a batch to another, or number rows by position."""
    TAKES_STATISTICS = auto()
    """It normalises with statistics of the whole batch, unless told to use running ones."""
    GATHERS = auto()
    """It takes elements out of a tensor, like samples out of a data set, or joins tensors."""
    READS_NUMBER = auto()
    """It returns the value of a tensor to the program as a number."""
    ADDS_TO_GRADIENT = auto()
    """Backward uses it to add to an existing gradient."""
    KEEPS_GRADIENT = auto()
    """Backward may use it to store a first gradient."""
    CLEARS = auto()
    """It sets all elements to zero."""
    CLEARS_BY_ZERO = auto()
    """It sets all elements to zero if its last argument is zero."""
    SCALES_GRADIENTS = auto()
    """A gradient scaler uses it."""
    UPDATES_SCALE = auto()
    """A gradient scaler computes its next scale with it."""
    SEEDS_LOADER = auto()
    """An iterator over a data loader draws its seed with it."""
    TAKES_ELEMENT = auto()
    """It takes an element out of a data pipeline."""
    COMPILED_PROGRAM = auto()
    """It represents a whole compiled program rather than one of its ops."""
    WRITES_IN_PART = auto()
    """It may leave part of uninitialized memory unwritten: its output is digested only when it is read."""
    NOT_ONE_OP = auto()
    """It does not represent a single op, and cannot be run again by itself."""


class Op(str):
    """An op: its name, and its semantics according to the trace."""

    semantics: OpSemantics

    def __new__(cls, name: str, semantics: OpSemantics) -> Self:
        """Create an op.

        Args:
            name: Name in records, such as `aten::add.Tensor`.
            semantics: What it does.
        """
        op = super().__new__(cls, name)
        op.semantics = semantics
        return op

    def __getnewargs__(self) -> tuple[str, OpSemantics]:  # type: ignore[override]
        """Return the arguments that recreate it when unpickled in another process."""
        return str(self), self.semantics


def text_of(semantics: OpSemantics) -> str:
    """Return the form of semantics in a trace: words separated by spaces, empty for `NONE`."""
    return " ".join(str(meaning.name).lower() for meaning in semantics)


_BY_WORD = {str(meaning.name).lower(): meaning for meaning in OpSemantics}


@lru_cache(maxsize=256)
def semantics_from(text: str) -> OpSemantics:
    """Parse the result of `text_of`.

    Raises:
        ValueError: A word is unknown.
    """
    semantics = OpSemantics.NONE
    for word in text.split():
        if word not in _BY_WORD:
            raise ValueError(text)
        semantics |= _BY_WORD[word]
    return semantics


# Semantics of ops by name. Adapters write them into the trace; for traces of the first format, which lack them, readers
# look them up here.


def _of(namespace: str, names: str) -> frozenset[str]:
    return frozenset(f"{namespace}::{name}" for name in names.split())


_ALL_OVERLOADS = (
    (
        OpSemantics.COPIES,
        _of("aten", "clone _to_copy copy_ contiguous cat stack _foreach_copy_ lift_fresh lift_fresh_copy")
        | {"determinism::batch"},
    ),
    (OpSemantics.COPIES_INTO, _of("aten", "copy_")),
    (
        OpSemantics.CHOOSES_ELEMENTS,
        _of(
            "aten",
            "index_put_ _index_put_impl_ index_copy_ index_fill_ masked_fill_ masked_scatter_ scatter_ put_ "
            "fill_diagonal_ triu_ tril_",
        ),
    ),
    (OpSemantics.REBINDS_STORAGE, _of("aten", "set_")),
    (
        OpSemantics.LEAVES_UNWRITTEN,
        _of(
            "aten",
            "empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided resize_ resize_as_ "
            "_resize_output_ _empty_affine_quantized _empty_per_channel_affine_quantized",
        ),
    ),
    (
        OpSemantics.MOVES_ROWS,
        _of(
            "aten",
            "index index_select index_put index_put_ _index_put_impl_ index_copy index_copy_ index_fill index_fill_ "
            "index_add index_add_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce take put put_ "
            "sort argsort topk kthvalue unique_consecutive _unique2 searchsorted bucketize nonzero "
            "masked_select masked_scatter masked_scatter_ cat stack repeat repeat_interleave roll flip rot90 "
            "constant_pad_nd tril triu tril_ triu_ diag_embed cumsum cumsum_ cumprod cummax cummin logcumsumexp "
            "_pack_padded_sequence slice_scatter select_scatter slice_backward im2col col2im",
        ),
    ),
    (
        OpSemantics.TAKES_STATISTICS,
        _of(
            "aten",
            "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
            "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_with_update_functional batch_norm",
        ),
    ),
    (OpSemantics.GATHERS, _of("aten", "index index_select gather take stack cat slice_copy")),
    (OpSemantics.READS_NUMBER, _of("aten", "_local_scalar_dense")),
    (
        OpSemantics.KEEPS_GRADIENT,
        _of("aten", "clone copy_ _to_copy detach empty_strided new_empty_strided empty_like contiguous"),
    ),
    (OpSemantics.UPDATES_SCALE, _of("aten", "_amp_update_scale_")),
    (
        OpSemantics.SCALES_GRADIENTS,
        _of("aten", "_amp_update_scale_ _amp_foreach_non_finite_check_and_unscale_"),
    ),
)
"""Semantics by the name without its overload."""


_ONE_OVERLOAD = (
    (OpSemantics.ADDS_TO_GRADIENT, _of("aten", "add_.Tensor")),
    (OpSemantics.CLEARS, _of("aten", "zero_ _foreach_zero_")),
    (OpSemantics.CLEARS_BY_ZERO, _of("aten", "fill_.Scalar mul_.Tensor mul_.Scalar _foreach_mul_.Scalar")),
    (OpSemantics.SEEDS_LOADER, _of("aten", "random_")),
)
"""Semantics by the full name."""


_BEGINNINGS = (
    (OpSemantics.TAKES_EACH_BY_ITSELF, ("aten::_foreach_",)),
    (OpSemantics.COLLECTIVE, ("c10d::", "_c10d_functional::", "tf::Collective")),
    (OpSemantics.TAKES_ELEMENT, ("tf::IteratorGetNext", "tf::OptionalGetValue")),
    (OpSemantics.COMPILED_PROGRAM, ("jax::",)),
    (OpSemantics.WRITES_IN_PART, ("triton::",)),
    (OpSemantics.NOT_ONE_OP, ("determinism::", "inductor::graph", "autograd::")),
)


_RECEIVES = frozenset({"recv_", "recv_any_source_", "irecv", "CollectiveBcastRecv", "CollectiveBcastRecvV2"})


_SENDS_NOTHING = _RECEIVES | {
    "wait_tensor", "barrier", "monitored_barrier_", "CollectiveInitializeCommunicator", "CollectiveAssignGroupV2",
}  # fmt: skip


@lru_cache(maxsize=4096)
def semantics_of(op: str) -> OpSemantics:
    """Return the semantics of an op, named as in records, such as `aten::add.Tensor`."""
    qualified = op.partition(".")[0]
    base = qualified.partition("::")[2]
    semantics = OpSemantics.NONE
    for meaning, names in _ALL_OVERLOADS:
        if qualified in names:
            semantics |= meaning
    for meaning, names in _ONE_OVERLOAD:
        if op in names:
            semantics |= meaning
    for meaning, beginnings in _BEGINNINGS:
        if op.startswith(beginnings):
            semantics |= meaning
    if qualified.endswith("_"):
        semantics |= OpSemantics.IN_PLACE
    if OpSemantics.COLLECTIVE in semantics:
        if base not in _SENDS_NOTHING:
            semantics |= OpSemantics.SENDS
        if base in _RECEIVES:
            semantics |= OpSemantics.ONLY_RECEIVES
        if base == "recv_any_source_":
            semantics |= OpSemantics.RECEIVES_FROM_ANY
    return semantics


_DROPOUTS = _of("aten", "native_dropout _fused_dropout") | {"aten::bernoulli_.float"}
"""Dropout and stochastic depth draw with `bernoulli_`, with one probability for all elements, within a module."""


def may_be_dropout(op: str) -> bool:
    """Whether an op that a module runs may draw the mask of a dropout."""
    return op in _DROPOUTS or op.partition(".")[0] in _DROPOUTS


_FRAMEWORKS = {"tf": "tensorflow", "keras": "tensorflow", "jax": "jax"}


def base_name(op: str) -> str:
    """Return the name of an op without its namespace."""
    return op.partition("::")[2] or op


def framework_of(op: str) -> str:
    """Return the framework of an op, by its namespace."""
    return _FRAMEWORKS.get(op.partition("::")[0], "torch")

"""What is known of ops that do not treat each row of a batch by itself."""

from __future__ import annotations

_MOVING = frozenset(
    {
        "index", "index_select", "index_put", "index_put_", "_index_put_impl_", "index_copy", "index_copy_", "index_fill", "index_fill_",
        "index_add", "index_add_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "take", "put", "put_",
        "sort", "argsort", "topk", "kthvalue", "unique_consecutive", "_unique2", "searchsorted", "bucketize", "nonzero",
        "masked_select", "masked_scatter", "masked_scatter_", "cat", "stack", "repeat", "repeat_interleave", "roll", "flip", "rot90",
        "constant_pad_nd", "tril", "triu", "tril_", "triu_", "diag_embed", "cumsum", "cumsum_", "cumprod", "cummax", "cummin", "logcumsumexp",
        "_pack_padded_sequence", "slice_scatter", "select_scatter", "slice_backward", "im2col", "col2im",
    }
)  # fmt: skip
"""They move elements, also from one row to another, or number rows by where they lie."""

_STATISTICS = frozenset(
    {
        "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_batch_norm_with_update", "_batch_norm_with_update_functional", "_native_batch_norm_legit.no_stats", "batch_norm",
    }
)  # fmt: skip
"""In training mode they take mean and variance over the whole batch."""


def _base(name: str) -> str:
    return name.partition("::")[2].partition(".")[0]


def moves_rows(name: str) -> bool:
    """Whether an op may move values from one row to another; then an equal row in need not give an equal row out."""
    return _base(name) in _MOVING


def takes_statistics(name: str) -> bool:
    """Whether an op normalises with statistics of the whole batch, unless it is told to use kept ones."""
    return _base(name) in _STATISTICS

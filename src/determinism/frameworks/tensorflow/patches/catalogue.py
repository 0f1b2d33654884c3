"""Which functions are replaced, and by what.

These are the ops that refuse to run on a GPU under op determinism (the messages of the 2.21 binary), and those that vary
on the CPU although it is enabled: `Bincount` and `DenseBincount` with weights, `ParallelDynamicStitch` with repeated indices
(measured).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from determinism.frameworks.tensorflow.patches import batch_norm, bincount, crop_and_resize, dynamic_stitch, svd
from determinism.frameworks.tensorflow.patches.placement import on_cpu

Function = Callable[..., Any]
_MARK = "__determinism_patch__"


@dataclass(frozen=True)
class Patch:
    """One op that is replaced.

    `what` is told to the user; `module` and `function` are where TensorFlow's Python makes the op `op_type`; `make` gets that
    function and returns the one that takes its place.
    """

    what: str
    module: str
    function: str
    op_type: str
    make: Callable[[Function], Function] = on_cpu

    def current(self) -> Function:
        """What builds the op now."""
        found: Function = getattr(import_module(f"tensorflow.python.ops.{self.module}"), self.function)
        return found

    def is_in_place(self) -> bool:
        """Whether what builds the op now is a replacement."""
        return getattr(self.current(), _MARK, None) == self.op_type

    def replacements(self) -> list[tuple[Function, Function]]:
        """What is to be replaced by what: the function, and its twin in `tf.raw_ops` that takes arguments by name alone."""
        stock = self.current()
        replacement = self.make(stock)
        setattr(replacement, _MARK, self.op_type)
        raw = getattr(import_module(f"tensorflow.python.ops.{self.module}"), self.op_type)

        @wraps(raw)
        def raw_op(**kwargs: Any) -> Any:
            return replacement(**kwargs)

        return [(stock, replacement), (raw, raw_op)]


_IMAGE, _NN, _ARRAY, _MATH = "gen_image_ops", "gen_nn_ops", "gen_array_ops", "gen_math_ops"
_FAKE_QUANT = "fake_quant_with_min_max_vars"
_BATCH_NORM = "fused_batch_norm with is_training=False (gradient)"

PATCHES = (
    Patch("bincount", _MATH, "bincount", "Bincount", bincount.bincount),
    Patch("bincount", _MATH, "dense_bincount", "DenseBincount", bincount.dense_bincount),
    Patch(
        "parallel_dynamic_stitch",
        "gen_data_flow_ops",
        "parallel_dynamic_stitch",
        "ParallelDynamicStitch",
        dynamic_stitch.parallel_dynamic_stitch,
    ),
    Patch(
        "crop_and_resize (gradient)",
        _IMAGE,
        "crop_and_resize_grad_image",
        "CropAndResizeGradImage",
        crop_and_resize.crop_and_resize_grad_image,
    ),
    Patch("crop_and_resize (gradient)", _IMAGE, "crop_and_resize_grad_boxes", "CropAndResizeGradBoxes"),
    Patch("resize, nearest neighbor (gradient)", _IMAGE, "resize_nearest_neighbor_grad", "ResizeNearestNeighborGrad"),
    Patch("adjust_contrast", _IMAGE, "adjust_contrastv2", "AdjustContrastv2"),
    Patch("sparse_dense_matmul", "gen_sparse_ops", "sparse_tensor_dense_mat_mul", "SparseTensorDenseMatMul"),
    Patch("svd of one column", "gen_linalg_ops", "svd", "Svd", svd.svd),
    Patch("max_pool_with_argmax (gradient)", _NN, "max_pool_grad_with_argmax", "MaxPoolGradWithArgmax"),
    Patch("dilation2d (gradient)", _NN, "dilation2d_backprop_input", "Dilation2DBackpropInput"),
    Patch("dilation2d (gradient)", _NN, "dilation2d_backprop_filter", "Dilation2DBackpropFilter"),
    Patch(f"{_FAKE_QUANT} (gradient)", _ARRAY, f"{_FAKE_QUANT}_gradient", "FakeQuantWithMinMaxVarsGradient"),
    Patch(
        f"{_FAKE_QUANT}_per_channel (gradient)",
        _ARRAY,
        f"{_FAKE_QUANT}_per_channel_gradient",
        "FakeQuantWithMinMaxVarsPerChannelGradient",
    ),
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad", "FusedBatchNormGrad", batch_norm.fused_batch_norm_grad),
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad_v2", "FusedBatchNormGradV2", batch_norm.fused_batch_norm_grad),
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad_v3", "FusedBatchNormGradV3", batch_norm.fused_batch_norm_grad),
)

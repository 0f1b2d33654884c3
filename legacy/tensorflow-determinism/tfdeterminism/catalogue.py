"""Which functions are replaced, up to which version of TensorFlow, and by what.

"Up to" is the last minor version whose own kernel on a GPU, or on a CPU with several threads, is not deterministic, or
which refuses to run it when determinism is asked for (NVIDIA/framework-reproducibility, doc/d9m/tensorflow_status.md;
for ParallelDynamicStitch, Bincount and ResourceScatter* on the CPU: measured).
"""

from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple

from tfdeterminism.installed_tensorflow import InstalledTensorFlow, Numbers
from tfdeterminism.ops import (
    batch_norm,
    bias_add,
    bincount,
    crop_and_resize,
    dynamic_stitch,
    scatter,
    scatter_nd,
    segment_sum,
)
from tfdeterminism.placement import on_cpu

NEWEST = (2, 7)


class Patch(NamedTuple):
    """One op that is replaced.

    `what` is told to the user; `module` and `function` are where TensorFlow's Python makes the op `op_type`; `make` gets
    that function and returns the one that takes its place; `stock_only` marks what NVIDIA's containers need no patch
    for, `container_until` the first container that needs it no more.
    """

    what: str
    module: str
    function: str
    op_type: str
    until: Numbers
    make: Callable[[Any], Any]
    stock_only: bool = False
    container_until: Optional[Numbers] = None

    def is_needed_by(self, tensorflow: InstalledTensorFlow) -> bool:
        """Whether this TensorFlow needs the patch."""
        if tensorflow.numbers > self.until:
            return False
        if tensorflow.container is None:
            return True
        return not self.stock_only and (self.container_until is None or tensorflow.container < self.container_until)


BIAS_ADD = Patch(
    "bias_add (gradient)", "gen_nn_ops", "bias_add_grad", "BiasAddGrad", (2, 0), bias_add.bias_add_grad, stock_only=True
)

_MATH, _NN, _IMAGE, _ARRAY = "gen_math_ops", "gen_nn_ops", "gen_image_ops", "gen_array_ops"
_RESOURCE, _STATE = "gen_resource_variable_ops", "gen_state_ops"

# The name and the op are the same word in two spellings, but for these.
_OP_TYPES = {
    "adjust_contrastv2": "AdjustContrastv2",
    "sparse_tensor_dense_mat_mul": "SparseTensorDenseMatMul",
    "dilation2d_backprop_input": "Dilation2DBackpropInput",
    "dilation2d_backprop_filter": "Dilation2DBackpropFilter",
}


def _patch(
    what: str,
    module: str,
    function: str,
    until: Numbers,
    make: Callable[[Any], Any] = on_cpu,
    container_until: Optional[Numbers] = None,
) -> Patch:
    op_type = _OP_TYPES.get(function) or "".join(word.capitalize() for word in function.split("_"))
    return Patch(what, module, function, op_type, until, make, container_until=container_until)


_OF_OPS = (
    BIAS_ADD,
    _patch("segment_sum", _MATH, "segment_sum", (2, 6), segment_sum.segment_sum("float64")),
    _patch("segment_prod", _MATH, "segment_prod", (2, 6)),
    _patch(
        "unsorted_segment_sum", _MATH, "unsorted_segment_sum", (2, 6), segment_sum.segment_sum("float64", "complex128")
    ),
    _patch("unsorted_segment_prod", _MATH, "unsorted_segment_prod", (2, 6)),
    _patch("scatter_nd", _ARRAY, "scatter_nd", (2, 6)),
    _patch("tensor_scatter_add", _ARRAY, "tensor_scatter_add", (2, 6)),
    _patch("tensor_scatter_sub", _ARRAY, "tensor_scatter_sub", (2, 6)),
    _patch("tensor_scatter_update", _ARRAY, "tensor_scatter_update", (2, 6)),
    _patch("softmax_cross_entropy_with_logits", _NN, "softmax_cross_entropy_with_logits", (2, 5)),
    _patch("sparse_softmax_cross_entropy_with_logits", _NN, "sparse_softmax_cross_entropy_with_logits", (2, 6)),
    _patch("resize_bilinear (gradient)", _IMAGE, "resize_bilinear_grad", (2, 3), container_until=(20, 3)),
    _patch("resize_nearest_neighbor (gradient)", _IMAGE, "resize_nearest_neighbor_grad", NEWEST),
    _patch(
        "crop_and_resize (gradient)",
        _IMAGE,
        "crop_and_resize_grad_image",
        NEWEST,
        crop_and_resize.crop_and_resize_grad_image,
    ),
    _patch("crop_and_resize (gradient)", _IMAGE, "crop_and_resize_grad_boxes", NEWEST),
    _patch("adjust_contrast", _IMAGE, "adjust_contrastv2", NEWEST),
    _patch("sparse_dense_matmul", "gen_sparse_ops", "sparse_tensor_dense_mat_mul", NEWEST),
    _patch("max_pool_with_argmax (gradient)", _NN, "max_pool_grad_with_argmax", NEWEST),
    _patch("dilation2d (gradient)", _NN, "dilation2d_backprop_input", NEWEST),
    _patch("dilation2d (gradient)", _NN, "dilation2d_backprop_filter", NEWEST),
    _patch("fake_quant_with_min_max_vars (gradient)", _ARRAY, "fake_quant_with_min_max_vars_gradient", NEWEST),
    _patch(
        "fake_quant_with_min_max_vars (gradient)", _ARRAY, "fake_quant_with_min_max_vars_per_channel_gradient", NEWEST
    ),
    _patch("bincount", _MATH, "bincount", NEWEST, bincount.bincount),
    _patch("bincount", _MATH, "dense_bincount", NEWEST, bincount.dense_bincount),
    _patch(
        "parallel_dynamic_stitch",
        "gen_data_flow_ops",
        "parallel_dynamic_stitch",
        NEWEST,
        dynamic_stitch.parallel_dynamic_stitch,
    ),
)

_OF_VARIABLES = tuple(
    patch
    for kind in ("add", "sub", "mul", "update")
    for patch in (
        _patch(
            "scatter_{} of variables".format(kind),
            _RESOURCE,
            "resource_scatter_" + kind,
            NEWEST,
            scatter.resource_scatter(kind),
        ),
        _patch("scatter_{} of variables".format(kind), _STATE, "scatter_" + kind, NEWEST, scatter.ref_scatter(kind)),
    )
)

_OF_NAMED_ELEMENTS = tuple(
    patch
    for kind in ("add", "sub", "update")
    for patch in (
        _patch(
            "scatter_nd_{} of variables".format(kind),
            _STATE,
            "resource_scatter_nd_" + kind,
            NEWEST,
            scatter_nd.resource_scatter_nd(kind),
        ),
        _patch(
            "scatter_nd_{} of variables".format(kind),
            _STATE,
            "scatter_nd_" + kind,
            NEWEST,
            scatter_nd.ref_scatter_nd(kind),
        ),
    )
)

_OF_BATCH_NORM = tuple(
    _patch(
        "fused_batch_norm (gradient, is_training=False)",
        _NN,
        "fused_batch_norm_grad" + version,
        NEWEST,
        batch_norm.fused_batch_norm_grad,
    )
    for version in ("", "_v2", "_v3")
)

PATCHES = _OF_OPS + _OF_VARIABLES + _OF_NAMED_ELEMENTS + _OF_BATCH_NORM


def needed_by(tensorflow: InstalledTensorFlow) -> Tuple[Patch, ...]:
    """The patches that this TensorFlow needs."""
    return tuple(patch for patch in PATCHES if patch.is_needed_by(tensorflow))


def words(patches: Iterable[Patch]) -> List[str]:
    """What to call these patches, each name once."""
    return list(dict.fromkeys(patch.what for patch in patches))

"""Deterministic replacements for TensorFlow's ops that have no deterministic implementation, or vary although they claim to have one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import tensorflow as tf

from determinism.types import ReplacedOps

# `ParallelDynamicStitch`, whose CPU kernel copies rows with several threads: among equal indices the last thread wins.
#
# `DynamicStitch` copies rows one by one: among rows with the same index the last one wins. Without repeated indices the
# results are the same.


def parallel_dynamic_stitch(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `parallel_dynamic_stitch` in which the last of several rows with the same index wins."""

    @functools.wraps(stock)
    def deterministic_stitch(indices: Any, data: Any, name: str | None = None) -> Any:
        from tensorflow.python.ops import gen_data_flow_ops

        return gen_data_flow_ops.dynamic_stitch(indices, data, name=name)

    return deterministic_stitch


# Where an op runs.
#
# Several GPU kernels add with atomic operations, in the order in which threads arrive, while the CPU kernels of the
# same ops take the elements in memory order. Such an op is deterministic if it runs on the CPU, wherever its inputs
# are: TensorFlow copies them there, and the result back.


@contextmanager
def cpu() -> Iterator[None]:
    """Place ops that are built or run in this context on the CPU of the job and task that they would have used.

    A surrounding `colocate_with` would override the device, so it is suspended.
    """
    from tensorflow.python.framework import ops

    stack = () if tf.executing_eagerly() else ops.get_default_graph()._colocation_stack.peek_objs()
    innermost = next(iter(stack), None)
    if innermost is None:
        with tf.device("/device:CPU:0"):
            yield
    else:
        with ops.colocate_with(None, ignore_existing=True), tf.device(_cpu_beside(innermost)):
            yield


def _cpu_beside(op: Any) -> str:
    parts = (getattr(op, "device", "") or "").split("/")
    return "/" + "/".join([*(part for part in parts if part.startswith(("job:", "replica:", "task:"))), "device:CPU:0"])


def on_cpu(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its op on the CPU."""

    @functools.wraps(stock)
    def run_on_cpu(*args: Any, **kwargs: Any) -> Any:
        with cpu():
            return stock(*args, **kwargs)

    return run_on_cpu


@functools.cache
def gpu_is_there() -> bool:
    """Whether TensorFlow can use a GPU here. Does not allocate memory on it."""
    return bool(tf.config.list_physical_devices("GPU"))


# The gradient of `fused_batch_norm` with `is_training=False`, as in fine-tuning, which the GPU refuses under op
# determinism.
#
# Its kernel sums the gradients of scale and offset with atomic operations. Here `reduce_sum` sums them over all
# dimensions but the channels'; it writes partial sums to memory of its own and adds them in a fixed order.
# In training mode, and without a GPU, the stock kernel runs.

_PARAMETERS = ["reserve_space_3", "epsilon", "data_format", "is_training", "name"]


def fused_batch_norm_grad(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `fused_batch_norm_grad` (of any version of the op) without atomic operations."""
    names = _PARAMETERS if stock.__name__.endswith("_v3") else _PARAMETERS[1:]

    @functools.wraps(stock)
    def deterministic_grad(
        y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any, reserve_space_2: Any, *args: Any, **kwargs: Any
    ) -> Any:
        options = dict(zip(names, args, strict=False)) | kwargs
        if options.get("is_training", True) or not gpu_is_there():
            return stock(y_backprop, x, scale, reserve_space_1, reserve_space_2, *args, **kwargs)
        return _of_inference(y_backprop, x, scale, reserve_space_1, reserve_space_2, options)

    return deterministic_grad


def _of_inference(gradient: Any, x: Any, scale: Any, mean: Any, variance: Any, options: dict[str, Any]) -> Any:
    with tf.name_scope(options.get("name") or "FusedBatchNormGrad"):
        x, scale, mean, variance = (tf.convert_to_tensor(one) for one in (x, scale, mean, variance))
        gradient = tf.cast(gradient, scale.dtype)
        shape, axes = _channels(tf.rank(x), options.get("data_format", "NHWC"))
        factor = tf.math.rsqrt(variance + options.get("epsilon", 0.0001))
        normal = (tf.cast(x, scale.dtype) - tf.reshape(mean, shape)) * tf.reshape(factor, shape)
        of_x = tf.cast(gradient * tf.reshape(scale * factor, shape), x.dtype)
        nothing = tf.zeros([], scale.dtype)
        of_scale, of_offset = (tf.reduce_sum(one, axis=axes) for one in (gradient * normal, gradient))
        return of_x, of_scale, of_offset, nothing, nothing


def _channels(rank: Any, data_format: str | bytes) -> tuple[Any, Any]:
    """The shape with which a vector of channels broadcasts to a tensor, and the axes to sum over."""
    if data_format in ("NCHW", b"NCHW", "NCDHW", b"NCDHW"):
        beside = tf.ones([tf.maximum(rank - 2, 0)], tf.int32)
        return tf.concat([[1, -1], beside], axis=0), tf.concat([[0], tf.range(2, rank)], axis=0)
    return [-1], tf.range(0, rank - 1)


# `tf.math.bincount` with weights.
#
# The CPU kernels give each thread its own sums and add those up: the result depends on which thread took which
# elements, even under op determinism; the GPU kernels refuse to run under it. Here the weights are summed per bin in
# memory order, by the CPU kernel of `UnsortedSegmentSum`, which is sequential. Without weights, or with integers, every
# order gives the same result: then the stock CPU kernel runs.

Count = Callable[[], Any]


def bincount(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `bincount` that sums floating-point weights in a fixed order."""

    @functools.wraps(stock)
    def deterministic_bincount(arr: Any, size: Any, weights: Any, name: str | None = None) -> Any:
        with cpu(), tf.name_scope(name or "Bincount"):
            values = tf.convert_to_tensor(arr, dtype=tf.int32)
            bins = tf.convert_to_tensor(size, dtype=tf.int32)
            weights = tf.convert_to_tensor(weights)
            return _weighted_or_stock(values, bins, weights, lambda: stock(values, bins, weights))

    return deterministic_bincount


def dense_bincount(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `dense_bincount` that sums a vector's floating-point weights in a fixed order; matrices are left to the stock kernel."""

    @functools.wraps(stock)
    def deterministic_dense_bincount(
        input: Any, size: Any, weights: Any, binary_output: bool = False, name: str | None = None
    ) -> Any:
        with cpu(), tf.name_scope(name or "DenseBincount"):
            values = tf.convert_to_tensor(input)
            bins = tf.convert_to_tensor(size, dtype=values.dtype)
            weights = tf.convert_to_tensor(weights)

            def as_stock() -> Any:
                return stock(values, bins, weights, binary_output=binary_output)

            if binary_output or values.shape.rank == 2:
                return as_stock()
            return _weighted_or_stock(values, bins, weights, as_stock, only_vectors=True)

    return deterministic_dense_bincount


def _weighted_or_stock(values: Any, size: Any, weights: Any, as_stock: Count, only_vectors: bool = False) -> Any:
    if not weights.dtype.is_floating or weights.shape.num_elements() == 0:
        return as_stock()
    vector = not only_vectors or values.shape.rank == 1
    if vector and weights.shape.num_elements() is not None:
        return _weighted(values, size, weights)
    # Whether there are weights, or how many dimensions the values have, is known only at run time.
    weighted = tf.size(weights) > 0
    if not vector:
        weighted = tf.logical_and(weighted, tf.equal(tf.rank(values), 1))
    return tf.cond(weighted, lambda: _weighted(values, size, weights), as_stock)


def _weighted(values: Any, size: Any, weights: Any) -> Any:
    from tensorflow.python.ops import gen_math_ops

    checks = [
        tf.debugging.assert_equal(
            tf.shape(values), tf.shape(weights), message="values and weights must have the same shape"
        ),
        tf.debugging.Assert(size >= 0, ["size must be non-negative", size]),
        tf.debugging.Assert(tf.reduce_all(values >= 0), ["values must be non-negative", values]),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        # Values beyond the last bin are not counted; a negative segment number makes the kernel skip them.
        bins = tf.where(values < size, values, -tf.ones_like(values))
        return gen_math_ops.unsorted_segment_sum(weights, bins, size)


# The gradient of `tf.image.crop_and_resize` with respect to the image, which the GPU refuses under op determinism.
#
# Without op determinism, threads that work on different boxes add to the same pixels. Here each element of the crops
# becomes the four rows (one for "nearest") that it adds to pixels, and these are summed per pixel in the order of
# boxes, rows, columns and corners by the CPU kernel of `UnsortedSegmentSum`, which is sequential. The bits are those of
# TensorFlow's own kernel with a single thread, which is what runs on the CPU under op determinism.


def crop_and_resize_grad_image(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `crop_and_resize_grad_image` that adds in a fixed order."""

    @functools.wraps(stock)
    def deterministic_grad_image(
        grads: Any, boxes: Any, box_ind: Any, image_size: Any, T: Any, method: Any = "bilinear", name: str | None = None
    ) -> Any:
        if method not in ("bilinear", b"bilinear", "nearest", b"nearest"):
            raise ValueError(f"method of crop_and_resize is {method!r}; it has to be 'bilinear' or 'nearest'.")
        spread = _to_nearest if method in ("nearest", b"nearest") else _to_corners
        with cpu(), tf.name_scope(name or "CropAndResizeGradImage"):
            grads = tf.convert_to_tensor(grads, dtype=tf.float32)
            boxes = tf.convert_to_tensor(boxes, dtype=tf.float32)
            box_ind = tf.convert_to_tensor(box_ind, dtype=tf.int32)
            size = tf.convert_to_tensor(image_size, dtype=tf.int32)
            checks = _checks(grads, boxes, box_ind, size)
            with tf.control_dependencies([check for check in checks if check is not None]):
                pixels, rows = spread(grads, boxes, box_ind, size, tf.as_dtype(T))
                return _sum_per_pixel(pixels, rows, size)

    return deterministic_grad_image


def _checks(grads: Any, boxes: Any, box_ind: Any, size: Any) -> list[Any]:
    grads.shape.assert_has_rank(4)
    boxes.shape.with_rank(2)[1:].assert_is_compatible_with([4])
    box_ind.shape.assert_has_rank(1)
    size.shape.assert_is_compatible_with([4])
    shape = tf.shape(grads)
    found = tf.stack([tf.shape(boxes)[0], tf.shape(box_ind)[0], size[3]])
    fits = tf.reduce_all(tf.equal(found, tf.stack([shape[0], shape[0], shape[3]])))
    positive = tf.reduce_all(tf.concat([shape[1:3], size[1:3]], axis=0) > 0)
    inside = tf.reduce_all(tf.logical_and(box_ind >= 0, box_ind < size[0]))
    return [
        tf.debugging.Assert(fits, ["grads, boxes, box_ind and image_size do not fit together", shape, size]),
        tf.debugging.Assert(positive, ["dimensions of grads and image must be positive", shape, size]),
        tf.debugging.Assert(inside, ["box_ind has values outside [0, batch_size)", box_ind]),
    ]


def _positions(first: Any, second: Any, crop_size: Any, image_size: Any) -> tuple[Any, Any]:
    """Position of each element of the crops along one axis of the image, float32 [boxes, crop_size], and which are inside.

    The operations and their precision are those of TensorFlow's kernels.
    """
    # The graph optimizer turns a division by a constant into a product, which rounds differently; placeholders prevent it.
    limit = tf.compat.v1.placeholder_with_default(tf.cast(image_size - 1, tf.float32), [])
    steps = tf.compat.v1.placeholder_with_default(tf.cast(tf.maximum(crop_size - 1, 1), tf.float32), [])
    offsets = tf.cast(tf.range(crop_size), tf.float32)
    scale = (second - first) * limit / steps
    spread = (first * limit)[:, tf.newaxis] + offsets * scale[:, tf.newaxis]
    middle = tf.cast(0.5 * tf.cast(first + second, tf.float64) * tf.cast(limit, tf.float64), tf.float32)
    positions = tf.where(crop_size > 1, spread, middle[:, tf.newaxis])
    inside = tf.logical_and(positions >= 0.0, positions <= limit)
    return tf.where(inside, positions, tf.zeros_like(positions)), inside


def _both_axes(grads: Any, boxes: Any, size: Any) -> tuple[Any, Any, Any]:
    shape = tf.shape(grads)
    y, y_inside = _positions(boxes[:, 0], boxes[:, 2], shape[1], size[1])
    x, x_inside = _positions(boxes[:, 1], boxes[:, 3], shape[2], size[2])
    return y, x, tf.logical_and(y_inside[:, :, tf.newaxis], x_inside[:, tf.newaxis, :])


def _pixel(row: Any, column: Any, inside: Any, box_ind: Any, size: Any) -> Any:
    """Index of a pixel within the batch, -1 if outside: int64 [boxes, crop height, crop width]."""
    row, column, images, wide = (tf.cast(one, tf.int64) for one in (row, column, box_ind, size))
    rows = images[:, tf.newaxis] * wide[1] + row
    pixel = rows[:, :, tf.newaxis] * wide[2] + column[:, tf.newaxis, :]
    return tf.where(inside, pixel, -tf.ones_like(pixel))


def _to_corners(grads: Any, boxes: Any, box_ind: Any, size: Any, dtype: Any) -> tuple[Any, Any]:
    y, x, inside = _both_axes(grads, boxes, size)
    top, bottom, left, right = tf.floor(y), tf.math.ceil(y), tf.floor(x), tf.math.ceil(x)
    y_part = (y - top)[:, :, tf.newaxis, tf.newaxis]
    x_part = (x - left)[:, tf.newaxis, :, tf.newaxis]
    of_top, of_bottom = (1 - y_part) * grads, y_part * grads
    rows = [(1 - x_part) * of_top, x_part * of_top, (1 - x_part) * of_bottom, x_part * of_bottom]
    corners = [(top, left), (top, right), (bottom, left), (bottom, right)]
    pixels = [_pixel(row, column, inside, box_ind, size) for row, column in corners]
    return tf.stack(pixels, axis=3), tf.cast(tf.stack(rows, axis=3), dtype)


def _to_nearest(grads: Any, boxes: Any, box_ind: Any, size: Any, dtype: Any) -> tuple[Any, Any]:
    def rounded(positions: Any) -> Any:
        # Halves round up, as in C; `tf.round` would round them to even.
        below = tf.floor(positions)
        return below + tf.cast(positions - below >= 0.5, positions.dtype)

    y, x, inside = _both_axes(grads, boxes, size)
    return _pixel(rounded(y), rounded(x), inside, box_ind, size), tf.cast(grads, dtype)


def _sum_per_pixel(pixels: Any, rows: Any, size: Any) -> Any:
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import gen_math_ops

    count = tf.reduce_prod(tf.cast(size[:3], tf.int64))
    gradient = tf.reshape(gen_math_ops.unsorted_segment_sum(rows, pixels, count), size)
    if not tf.executing_eagerly():
        gradient.set_shape(tensor_util.constant_value_as_shape(size))
    return gradient


# Replaces functions wherever a module refers to them.

Function = Callable[..., Any]


def replace_everywhere(pairs: Iterable[tuple[Function, Function]]) -> None:
    """In each loaded module, rebind names of the first function of a pair to the second.

    TensorFlow's public names are copies of those in its own modules, and so are names that a program imported: every
    module is searched for the function object.
    """
    by_identity = {id(old): (old, new) for old, new in pairs}
    for namespace in _namespaces():
        for name, value in list(vars(namespace).items()):
            pair = by_identity.get(id(value))
            if pair is not None and pair[0] is value:
                _put(namespace, name, pair[1])


def _namespaces() -> Iterator[Any]:
    seen = set()
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        # The wrapper that warns of a module's deprecated names caches attributes that were accessed.
        for holder in (module, names.get("_tfmw_wrapped_module")):
            if holder is not None and id(holder) not in seen:
                seen.add(id(holder))
                yield holder


def _put(namespace: Any, name: str, value: Function) -> None:
    vars(namespace)[name] = value
    in_cache = getattr(type(namespace), "_fastdict_key_in", None)
    if in_cache is not None and in_cache(namespace, name):
        type(namespace)._fastdict_insert(namespace, name, value)


# Singular value decomposition of matrices with one column.


def svd(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, on the CPU for a matrix with one column or an unknown number of columns.

    The GPU kernel refuses to run under op determinism only for one column ("Determinism is not yet supported
    for SVD of matrices with 1 column", in the binary of 2.21).
    """

    @functools.wraps(stock)
    def svd_on_cpu(input: Any, *args: Any, **kwargs: Any) -> Any:
        matrix = tf.convert_to_tensor(input)
        if matrix.shape.rank is not None and matrix.shape.rank > 0 and matrix.shape[-1] not in (1, None):
            return stock(matrix, *args, **kwargs)
        with cpu():
            return stock(matrix, *args, **kwargs)

    return svd_on_cpu


# Which functions are replaced, and by what.
#
# These are the ops that refuse to run on a GPU under op determinism (the messages of the 2.21 binary), and those that
# vary on the CPU although it is enabled: `Bincount` and `DenseBincount` with weights, `ParallelDynamicStitch` with
# repeated indices (measured).

_MARK = "__determinism_patch__"


@dataclass(frozen=True)
class Patch:
    """One op that is replaced.

    `what` is its name for the user; `module` and `function` are where TensorFlow's Python code builds the op `op_type`; `make` gets
    that function and returns its replacement.
    """

    what: str
    module: str
    function: str
    op_type: str
    make: Callable[[Function], Function] = on_cpu

    def current(self) -> Function:
        """The function that builds the op now."""
        found: Function = getattr(import_module(f"tensorflow.python.ops.{self.module}"), self.function)
        return found

    def is_in_place(self) -> bool:
        """Whether the op is already replaced."""
        return getattr(self.current(), _MARK, None) == self.op_type

    def replacements(self) -> list[tuple[Function, Function]]:
        """Pairs of function and replacement: the function itself, and its twin in `tf.raw_ops` that takes only keyword arguments."""
        stock = self.current()
        replacement = self.make(stock)
        setattr(replacement, _MARK, self.op_type)
        raw = getattr(import_module(f"tensorflow.python.ops.{self.module}"), self.op_type)

        @functools.wraps(raw)
        def raw_op(**kwargs: Any) -> Any:
            return replacement(**kwargs)

        return [(stock, replacement), (raw, raw_op)]


_IMAGE, _NN, _ARRAY, _MATH = "gen_image_ops", "gen_nn_ops", "gen_array_ops", "gen_math_ops"
_FAKE_QUANT = "fake_quant_with_min_max_vars"
_BATCH_NORM = "fused_batch_norm with is_training=False (gradient)"

PATCHES = (
    Patch("bincount", _MATH, "bincount", "Bincount", bincount),
    Patch("bincount", _MATH, "dense_bincount", "DenseBincount", dense_bincount),
    Patch(
        "parallel_dynamic_stitch",
        "gen_data_flow_ops",
        "parallel_dynamic_stitch",
        "ParallelDynamicStitch",
        parallel_dynamic_stitch,
    ),
    Patch(
        "crop_and_resize (gradient)",
        _IMAGE,
        "crop_and_resize_grad_image",
        "CropAndResizeGradImage",
        crop_and_resize_grad_image,
    ),
    Patch("crop_and_resize (gradient)", _IMAGE, "crop_and_resize_grad_boxes", "CropAndResizeGradBoxes"),
    Patch("resize, nearest neighbor (gradient)", _IMAGE, "resize_nearest_neighbor_grad", "ResizeNearestNeighborGrad"),
    Patch("adjust_contrast", _IMAGE, "adjust_contrastv2", "AdjustContrastv2"),
    Patch("sparse_dense_matmul", "gen_sparse_ops", "sparse_tensor_dense_mat_mul", "SparseTensorDenseMatMul"),
    Patch("svd of one column", "gen_linalg_ops", "svd", "Svd", svd),
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
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad", "FusedBatchNormGrad", fused_batch_norm_grad),
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad_v2", "FusedBatchNormGradV2", fused_batch_norm_grad),
    Patch(_BATCH_NORM, _NN, "fused_batch_norm_grad_v3", "FusedBatchNormGradV3", fused_batch_norm_grad),
)


VERSIONS = ((2, 16), (2, 21))
"""The first and the last minor version whose kernels these patches are known to match."""


def apply() -> ReplacedOps:
    """Apply every patch that is not applied yet, wherever a module refers to the function that builds the op.

    Does nothing in versions of TensorFlow that the patches do not support.
    """
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if not VERSIONS[0] <= version <= VERSIONS[1]:
        bounds = " to ".join(".".join(map(str, bound)) for bound in VERSIONS)
        return ReplacedOps(reason=f"the patches are for TensorFlow {bounds}, and this is {tf.__version__}")
    needed = [patch for patch in PATCHES if not patch.is_in_place()]
    pairs = [pair for patch in needed for pair in patch.replacements()]
    replace_everywhere(pairs)
    return ReplacedOps(ops=_words(needed), restore=lambda: replace_everywhere([(new, old) for old, new in pairs]))


def _words(patches: list[Patch]) -> list[str]:
    return list(dict.fromkeys(patch.what for patch in patches))

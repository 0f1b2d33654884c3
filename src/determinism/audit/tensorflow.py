"""The ops of TensorFlow that are audited, and the process that measures them: `-m determinism.audit.tensorflow`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from determinism.audit.harness import (
    FEW,
    FLOATS,
    MANY,
    Arrays,
    Auditor,
    Call,
    Case,
    Input,
    Repeatable,
    Request,
    array_bytes,
    available_processors,
    calling,
    leaf,
    normal,
    whole,
)
from determinism.digest import digest_bytes, digest_many
from determinism.frameworks.tensorflow.enable import CONTROLS

# A case: one way to call an op, on inputs that are most likely to make it vary.


class Inputs:
    """Makes the inputs of one case, the same each time, on the device in whose scope it is used."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype: tf.DType = tf.as_dtype(dtype)
        self.arrays = Arrays(seed)
        self.leaves: list[tf.Tensor] = []
        """The tensors to differentiate with respect to."""

    def tensor(self, array: Any) -> tf.Tensor:
        """An array as a tensor of the case's dtype, not differentiated."""
        return tf.cast(tf.constant(array), self.dtype)

    def leaf_of(self, array: Any) -> tf.Tensor:
        """An array as a tensor of the case's dtype, differentiated."""
        made = self.tensor(array)
        self.leaves.append(made)
        return made

    def normal(self, *shape: int) -> tf.Tensor:
        """Values of very different magnitudes, not differentiated."""
        return self.tensor(self.arrays.normal(*shape))

    def leaf(self, *shape: int) -> tf.Tensor:
        """Like `normal`, but differentiated."""
        return self.leaf_of(self.arrays.normal(*shape))

    def whole(self, high: int, *shape: int) -> tf.Tensor:
        """Integers below `high`, as int32: as indices of many contributions to few elements, they collide."""
        return tf.constant(self.arrays.whole(high, *shape))

    def like(self, tensor: tf.Tensor) -> tf.Tensor:
        """Random values to begin a backward pass with."""
        return tf.cast(tf.constant(self.arrays.normal(*tensor.shape)), tensor.dtype)


# Ops that read images between their elements or in boxes: gradients of many elements go to one.

IMAGES = (4, 64, 64, 8)
"""Shape of a batch of images: count, height, width, channels."""
_CROPPED = (4, 64, 64, 2)
_BOXES, _CROP = 256, 48


def image_cases() -> Iterator[Case]:
    """All cases of this family."""
    for method in ("bilinear", "nearest"):
        name = f"tf.image.resize(method={method})"
        yield Case(name, "larger", image(_resized(method, 160)))
        yield Case(name, "smaller", image(_resized(method, 24)))
    # The op has no gradient.
    contrast = calling(lambda x: tf.image.adjust_contrast(x, 2.0), normal(*IMAGES))
    yield Case("tf.image.adjust_contrast", "images", contrast)
    name = "tf.image.crop_and_resize"
    for method in ("bilinear", "nearest"):
        yield Case(name, f"{method}, gradient to image", _cropped(method, leaf(*_CROPPED), Inputs.tensor))
    yield Case(name, "bilinear, gradient to boxes", _cropped("bilinear", normal(*_CROPPED), Inputs.leaf_of))


def image(run: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[Inputs], Call]:
    """A call with a batch of images."""
    return calling(run, leaf(*IMAGES))


def _resized(method: str, size: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.image.resize(x, (size, size), method)


def _cropped(method: str, images: Input, as_boxes: Callable[[Inputs, Any], tf.Tensor]) -> Callable[[Inputs], Call]:
    def run(x: tf.Tensor, places: tf.Tensor, corners: tf.Tensor) -> tf.Tensor:
        return tf.image.crop_and_resize(x, corners, places, (_CROP, _CROP), method)

    return calling(run, images, whole(_CROPPED[0], _BOXES), lambda i: as_boxes(i, i.arrays.boxes(_BOXES)))


_SIZES = {1: (2048,), 2: (64, 64), 3: (20, 20, 20)}
"""Lengths of images, by the number of dimensions."""
_LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_CHANNELS = 8


def layer_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield from _convolutions()
    yield from _pools()
    yield from _products()
    yield from _losses()
    batch_norm = calling(tf.compat.v1.nn.fused_batch_norm, leaf(*IMAGES), leaf(IMAGES[-1]), leaf(IMAGES[-1]))
    yield Case("tf.compat.v1.nn.fused_batch_norm", "training", batch_norm)
    low, high = (lambda inputs: inputs.leaf_of(np.array(-2.0))), (lambda inputs: inputs.leaf_of(np.array(2.0)))
    fake_quant = calling(tf.quantization.fake_quant_with_min_max_vars, leaf(*IMAGES), low, high)
    yield Case("tf.quantization.fake_quant_with_min_max_vars", "all elements", fake_quant)


def _images(dims: int) -> Input:
    return leaf(4, *_SIZES[dims], _CHANNELS)


def _convolutions() -> Iterator[Case]:
    for dims in (1, 2, 3):
        dtypes = ("float32", "bfloat16") if dims == 2 else ("float32",)
        yield Case(f"tf.nn.conv{dims}d", "kernel 3, stride 2", _convolution(dims), dtypes)
        yield Case(f"tf.nn.conv{dims}d", "transposed, kernel 3, stride 2", _transposed(dims))
    ones = [1, 1, 1, 1]
    depthwise = partial(tf.nn.depthwise_conv2d, strides=ones, padding="SAME")
    make = calling(depthwise, _images(2), leaf(3, 3, _CHANNELS, 2))
    yield Case("tf.nn.depthwise_conv2d", "kernel 3, 2 filters per channel", make)
    yield Case("tf.nn.bias_add", "images", calling(tf.nn.bias_add, _images(2), leaf(_CHANNELS)), FLOATS)
    dilation = partial(tf.nn.dilation2d, strides=ones, padding="SAME", data_format="NHWC", dilations=ones)
    yield Case("tf.nn.dilation2d", "kernel 3", calling(dilation, _images(2), leaf(3, 3, _CHANNELS)))


def _filters(dims: int) -> Input:
    return leaf(*(3,) * dims, _CHANNELS, _CHANNELS)


def _convolution(dims: int) -> Callable[[Inputs], Call]:
    run = partial(tf.nn.convolution, strides=2, padding="SAME", data_format=_LAYOUTS[dims])
    return calling(run, _images(dims), _filters(dims))


def _transposed(dims: int) -> Callable[[Inputs], Call]:
    shape = [4, *(2 * size for size in _SIZES[dims]), _CHANNELS]
    run = partial(tf.nn.conv_transpose, output_shape=shape, strides=2, padding="SAME", data_format=_LAYOUTS[dims])
    return calling(run, _images(dims), _filters(dims))


def _pools() -> Iterator[Case]:
    for dims in (1, 2, 3):
        run = partial(getattr(tf.nn, f"max_pool{dims}d"), ksize=3, strides=1, padding="SAME")
        yield Case(f"tf.nn.max_pool{dims}d", "overlapping windows", calling(run, _images(dims)))
    yield Case(
        "tf.nn.max_pool_with_argmax",
        "overlapping windows",
        image(lambda x: tf.nn.max_pool_with_argmax(x, 3, 1, "SAME")),
    )
    for seed in (1, 0):
        name = "tf.nn.fractional_max_pool"
        yield Case(name, f"seed={seed}, overlapping windows", image(_fractional(seed)))


def _fractional(seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.nn.fractional_max_pool(x, 1.4, overlapping=True, seed=seed)


def _products() -> Iterator[Case]:
    yield Case("tf.linalg.matmul", "two matrices", calling(tf.linalg.matmul, leaf(192, 512), leaf(512, 192)), FLOATS)
    yield Case("tf.sparse.sparse_dense_matmul", "equal rows", _sparse_dense)
    yield Case("tf.sparse.sparse_dense_matmul", "equal rows, transposed", lambda i: _sparse_dense(i, transposed=True))
    yield Case("tf.linalg.svd", "64 x 48", calling(tf.linalg.svd, leaf(64, 48)))


def _sparse_dense(inputs: Inputs, *, transposed: bool = False) -> Call:
    places = np.unique(inputs.arrays.whole(128, 8192, 2), axis=0).astype(np.int64)
    values, dense = inputs.leaf(len(places)), inputs.leaf(128, 64)
    return lambda: tf.sparse.sparse_dense_matmul(
        tf.SparseTensor(places, values, (128, 128)), dense, adjoint_a=transposed
    )


def _losses() -> Iterator[Case]:
    softmax, sparse = tf.nn.softmax_cross_entropy_with_logits, tf.nn.sparse_softmax_cross_entropy_with_logits
    make = calling(
        lambda scores, labels: softmax(labels, scores),
        leaf(8192, 64),
        lambda inputs: tf.nn.softmax(inputs.normal(8192, 64)),
    )
    yield Case("tf.nn.softmax_cross_entropy_with_logits", "distributions", make)
    make = calling(lambda scores, labels: sparse(labels, scores), leaf(8192, 64), whole(64, 8192))
    yield Case("tf.nn.sparse_softmax_cross_entropy_with_logits", "labels", make)
    yield Case("tf.nn.ctc_loss", "repeated labels", calling(_ctc, leaf(32, 16, 16), whole(3, 16, 12)))


def _ctc(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.ctc_loss(labels + 1, scores, tf.fill([16], 12), tf.fill([16], 32), blank_index=0)


# Runs a case forward and backward, and digests its results.

_REFUSALS = (tf.errors.OpError, RuntimeError, ValueError, NotImplementedError)


@contextmanager
def _op_determinism(on: bool) -> Iterator[None]:
    control = CONTROLS["tf.config.experimental.enable_op_determinism"]
    before = control.read()
    control.write(on)
    # A seed left by an earlier case would hide that an op needs one.
    tf.random.set_seed(None)
    try:
        yield
    finally:
        control.write(before)


class _Taped:
    """Runs a case on a gradient tape."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._inputs = inputs
        self._call = case.make(inputs)
        self._roots: list[tf.Tensor] = []
        self._upstream: list[tf.Tensor] = []

    def forward(self) -> bytes:
        with tf.GradientTape() as self._tape:
            self._tape.watch(self._inputs.leaves)
            made = tf.nest.flatten(self._call())
        self._roots = [tensor for tensor in made if tensor.dtype.is_floating]
        return _digest(made)

    def backward(self) -> bytes | None:
        if not self._roots or not self._inputs.leaves:
            return None
        self._upstream = self._upstream or [self._inputs.like(root) for root in self._roots]
        found = self._tape.gradient(self._roots, self._inputs.leaves, self._upstream)
        gradients = [tf.convert_to_tensor(gradient) for gradient in found if gradient is not None]
        return _digest(gradients) if gradients else None


def _digest(tensors: list[Any]) -> bytes:
    return digest_many([digest_bytes(array_bytes(tensor.numpy())) for tensor in tensors])


# Ops that draw random numbers, return the time, or return the elements of a dataset in the order of completion.

_DRAWN = 1 << 12
_ELEMENTS = 256


def sampling_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield Case("tf.random.normal", "no seed was set", calling(lambda: tf.random.normal([_DRAWN])))
    yield Case("tf.random.normal", "seeded before each call", calling(_seeded(lambda: tf.random.normal([_DRAWN]))))
    yield Case(
        "tf.random.normal",
        "dropout, seeded before each call",
        calling(_seeded(lambda: tf.nn.dropout(tf.ones([_DRAWN]), 0.5))),
    )
    yield Case("tf.keras.initializers.GlorotUniform", "seeded before each call", calling(_initialized))
    yield Case("tf.random.Generator.from_non_deterministic_state", "a new generator", calling(_new_generator))
    from_system = calling(partial(tf.raw_ops.NonDeterministicInts, shape=[64], dtype=tf.int64))
    yield Case("tf.raw_ops.NonDeterministicInts", "64 numbers", from_system, ("int64",))
    for seed in (1, 0):
        yield Case(
            "tf.image.sample_distorted_bounding_box",
            f"seed={seed}, 64 boxes, seeded before each call",
            calling(_seeded(partial(_boxes, seed))),
        )
    yield Case("tf.timestamp", "the time", calling(lambda: tf.timestamp()), ("float64",))
    yield from _pipelines()


def _seeded(run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        tf.random.set_seed(7)
        return run()

    return call


def _initialized() -> tf.Tensor:
    tf.keras.utils.set_random_seed(7)
    return tf.keras.initializers.GlorotUniform()((64, 64))


def _new_generator() -> tf.Tensor:
    return tf.random.Generator.from_non_deterministic_state().normal([_DRAWN])


def _boxes(seed: int) -> Any:
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    return [tf.image.sample_distorted_bounding_box([640, 480, 3], whole, seed=seed) for _ in range(64)]


def _pipelines() -> Iterator[Case]:
    for ordered in (False, None):
        words = f"deterministic={ordered}, num_parallel_calls=2"
        yield Case("tf.data.Dataset.map", words, calling(partial(_mapped, ordered)), ("int64",))
        yield Case("tf.data.Dataset.interleave", words, calling(partial(_interleaved, ordered)), ("int64",))
    yield Case("tf.data.Dataset.shuffle", "no seed was set", calling(lambda: _listed(_range().shuffle(64))), ("int64",))
    yield Case(
        "tf.data.Dataset.shuffle",
        "seeded before each call",
        calling(_seeded(lambda: _listed(_range().shuffle(64)))),
        ("int64",),
    )
    yield Case("tf.data.Dataset.shard", "2 shards", calling(lambda: _listed(_range().shard(2, 0))), ("int64",))


def _range() -> tf.data.Dataset:
    return tf.data.Dataset.range(_ELEMENTS)


def _listed(dataset: tf.data.Dataset) -> tf.Tensor:
    # Not in batches, which would be filled in order.
    return tf.constant(list(dataset.as_numpy_iterator()))


def _mapped(ordered: bool | None) -> tf.Tensor:
    return _listed(_range().map(lambda x: x * 2, num_parallel_calls=2, deterministic=ordered))


def _interleaved(ordered: bool | None) -> tf.Tensor:
    return _listed(
        tf.data.Dataset.range(8).interleave(
            lambda x: tf.data.Dataset.range(x * 32, x * 32 + 32),
            cycle_length=2,
            num_parallel_calls=2,
            deterministic=ordered,
        )
    )


# Ops that write, add or count by index: many contributions go to few elements.

ROWS, WIDTH = 1 << 14, 16
_LONG_ROWS = 1 << 17
"""The number of rows from which threads write to one variable concurrently."""

Run = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]
"""Takes the target, the index and the values."""


def writing_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield from _scatters()
    yield from _variables()
    yield from _stitches()
    yield from _reads()
    yield from _counts()


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few rows, an index of many of them, and as many rows of values."""
    return calling(run, leaf(FEW, WIDTH), whole(FEW, ROWS), leaf(ROWS, WIDTH))


def _scatters() -> Iterator[Case]:
    yield Case("tf.scatter_nd", "equal indices", _rows(lambda t, i, v: tf.scatter_nd(i[:, None], v, t.shape)), FLOATS)
    for name in ("add", "sub"):
        yield Case(f"tf.tensor_scatter_nd_{name}", "equal indices", _rows(_tensor_scatter(name)), FLOATS)
    yield Case("tf.tensor_scatter_nd_update", "equal indices", _rows(_tensor_scatter("update")))
    yield Case(
        "tf.tensor_scatter_nd_update",
        "tensor_scatter_nd_max, equal indices",
        _rows(lambda t, i, v: tf.stop_gradient(tf.tensor_scatter_nd_max(t, i[:, None], v))),
    )


def _tensor_scatter(name: str) -> Run:
    return lambda t, i, v: getattr(tf, f"tensor_scatter_nd_{name}")(t, i[:, None], v)


def _variables() -> Iterator[Case]:
    for name in ("add", "sub"):
        dtypes = ("float32", "float64") if name == "add" else ("float32",)
        yield Case("tf.Variable.scatter_add", f"scatter_{name}, equal indices", _variable(_scattered(name)), dtypes)
    for name in ("update", "add"):
        yield Case(
            "tf.compat.v1.scatter_nd_update", f"scatter_nd_{name}, equal indices", _variable(_scattered_nd(name))
        )


def _scattered(name: str) -> Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]:
    return lambda variable, i, v: getattr(variable, f"scatter_{name}")(tf.IndexedSlices(v, i))


def _scattered_nd(name: str) -> Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]:
    return lambda variable, i, v: getattr(variable, f"scatter_nd_{name}")(i[:, None], v)


def _variable(write: Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]) -> Callable[[Inputs], Call]:
    """A call that writes into a variable, which starts with the same values each time."""

    def make(inputs: Inputs) -> Call:
        target, index, values = (
            inputs.normal(FEW, WIDTH),
            inputs.whole(FEW, _LONG_ROWS),
            inputs.normal(_LONG_ROWS, WIDTH),
        )
        variable = tf.Variable(target)

        def call() -> tf.Tensor:
            variable.assign(target)
            write(variable, index, values)
            return variable.read_value()

        return call

    return make


def _stitches() -> Iterator[Case]:
    yield Case("tf.dynamic_stitch", "the parallel kernel, equal indices", _stitched(tf.raw_ops.ParallelDynamicStitch))
    yield Case("tf.dynamic_stitch", "equal indices", _stitched(tf.raw_ops.DynamicStitch))


def _stitched(stitch: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        # Each row is written only a few times, and is wide, so that two threads meet at one.
        index = [inputs.whole(1 << 12, 1 << 15) for _ in range(2)]
        values = [inputs.normal(1 << 15, 64) for _ in range(2)]
        return lambda: stitch(indices=index, data=values)

    return make


def _reads() -> Iterator[Case]:
    yield Case("tf.gather", "equal indices", _rows(lambda t, i, v: tf.gather(t, i)), FLOATS)
    yield Case("tf.gather", "gather_nd, equal indices", _rows(lambda t, i, v: tf.gather_nd(t, i[:, None])))
    yield Case("tf.gather", "embedding_lookup, equal indices", _rows(lambda t, i, v: tf.nn.embedding_lookup(t, i)))
    yield Case(
        "tf.convert_to_tensor",
        "of tf.IndexedSlices, equal indices",
        _rows(lambda t, i, v: tf.convert_to_tensor(tf.IndexedSlices(v, i, t.shape))),
    )


def _counts() -> Iterator[Case]:
    weighted = calling(tf.math.bincount, whole(FEW, MANY), normal(MANY))
    yield Case("tf.math.bincount", "with weights, equal values", weighted, ("float32", "float64"))
    unweighted = calling(tf.math.bincount, whole(FEW, MANY))
    yield Case("tf.math.bincount", "without weights, equal values", unweighted, ("int32",))
    histogram = calling(lambda x: tf.histogram_fixed_width(x, [-3.0, 3.0], FEW), normal(MANY))
    yield Case("tf.histogram_fixed_width", "equal values", histogram)


# Ops that reduce segments of rows, columns, or everything to one number.


def segment_cases() -> Iterator[Case]:
    """All cases of this family."""
    for name in ("sum", "mean", "prod"):
        run = getattr(tf.math, f"segment_{name}")
        yield Case(f"tf.math.segment_{name}", "few segments", _sorted(run), FLOATS if name == "sum" else ("float32",))
    for name in ("sum", "mean", "prod", "sqrt_n"):
        run = getattr(tf.math, f"unsorted_segment_{name}")
        dtypes = FLOATS if name == "sum" else ("float32",)
        yield Case(f"tf.math.unsorted_segment_{name}", "few segments", _unsorted(run), dtypes)
    for name in ("sum", "mean", "sqrt_n"):
        run = getattr(tf.sparse, f"segment_{name}")
        yield Case("tf.sparse.segment_sum", f"segment_{name}, equal indices", _sparse(run))
    yield Case("tf.math.reduce_sum", "all elements", _all(tf.math.reduce_sum), FLOATS)
    yield Case("tf.math.reduce_sum", "reduce_mean, all elements", _all(tf.math.reduce_mean))
    yield Case("tf.math.reduce_sum", "columns", _all(lambda x: tf.math.reduce_sum(tf.reshape(x, (512, -1)), 0)))


def _near_one(inputs: Inputs) -> tf.Tensor:
    return inputs.leaf_of(inputs.arrays.near_one(ROWS, WIDTH))


def _segments(inputs: Inputs) -> tf.Tensor:
    return tf.sort(inputs.whole(FEW, ROWS))


def _sorted(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    return calling(lambda segments, x: run(x, segments), _segments, _near_one)


def _unsorted(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    return calling(lambda segments, x: run(x, segments, FEW), whole(FEW, ROWS), _near_one)


def _sparse(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    return calling(run, leaf(FEW, WIDTH), whole(FEW, ROWS), _segments)


def _all(run: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[Inputs], Call]:
    return calling(run, leaf(MANY))


# The auditor for TensorFlow.


class TensorFlowAuditor(Auditor):
    """Measures eager ops of TensorFlow."""

    version = tf.__version__
    errors = _REFUSALS
    families = (writing_cases, segment_cases, image_cases, layer_cases, sampling_cases)

    def prepare(self, request: Request) -> None:
        """Limit the threads, which TensorFlow creates with its first op."""
        tf.config.threading.set_intra_op_parallelism_threads(request["threads"] or 0)
        tf.config.threading.set_inter_op_parallelism_threads(request["threads"] or 0)

    def accelerators(self) -> list[str]:
        """The names of the GPUs."""
        gpus = tf.config.list_physical_devices("GPU")
        return [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]

    def threads(self) -> int:
        """The number of threads that share the work of one op."""
        return tf.config.threading.get_intra_op_parallelism_threads() or available_processors()

    @contextmanager
    def running(self, device: str, *, deterministic_mode: bool) -> Iterator[None]:
        """Run on a device, with `tf.config.experimental.enable_op_determinism()` or without it."""
        with _op_determinism(deterministic_mode), tf.device("/CPU:0" if device == "cpu" else "/GPU:0"):
            yield

    def repeatable(self, case: Case, device: str, dtype: str, seed: int) -> Repeatable:
        """A case on one set of inputs."""
        return _Taped(case, Inputs(dtype, seed))


AUDITOR = TensorFlowAuditor()

if __name__ == "__main__":
    raise SystemExit(AUDITOR.main())

"""`determinism.patch` with TensorFlow: what is replaced, that replacements are correct and do not vary, and that stock ops are restored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_data_flow_ops, gen_image_ops, gen_math_ops, gen_nn_ops

import determinism
from determinism.frameworks.tensorflow import patches
from determinism.frameworks.tensorflow.patches import PATCHES, on_cpu
from tests.tensorflow_runs import gives_different_results

NEEDS_THREADS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor adds up in one order")
RANDOM = np.random.RandomState(0)
ROWS = 1 << 17
BINS = RANDOM.randint(0, 16, ROWS).astype(np.int32)
WEIGHTS = RANDOM.randn(ROWS).astype(np.float32)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give each test the same numbers, whichever tests ran before it in this process."""
    RANDOM.seed(0)


@pytest.fixture
def patched() -> Iterator[determinism.Patches]:
    with determinism.patch() as patches:
        yield patches


def same_bits(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def ops_of(function: Callable[..., Any], *arrays: Any) -> dict[str, str]:
    """The ops of a traced function, with their requested devices."""
    graph = tf.function(function).get_concrete_function(*(tf.constant(array) for array in arrays)).graph
    return {op.type: op.device for op in graph.get_operations()}


def weighted_bincount() -> bytes:
    return bytes(tf.math.bincount(BINS, weights=WEIGHTS, minlength=16).numpy().tobytes())


def dense_bincount() -> bytes:
    return bytes(tf.raw_ops.DenseBincount(input=BINS, size=16, weights=WEIGHTS).numpy().tobytes())


def stitch() -> bytes:
    rows = WEIGHTS.reshape(-1, 4)
    indices = BINS[: len(rows)]
    return bytes(tf.raw_ops.ParallelDynamicStitch(indices=[indices, indices], data=[rows, 2 * rows]).numpy().tobytes())


@NEEDS_THREADS
@pytest.mark.parametrize("op", [weighted_bincount, dense_bincount, stitch])
def test_an_op_that_varies_under_op_determinism_does_not_when_patched(op: Callable[[], bytes]) -> None:
    with determinism.enable():
        assert gives_different_results(op)
        with determinism.patch():
            assert len({op() for _ in range(60)}) == 1


def crops(boxes: int, crop: int, depth: int, size: list[int]) -> tuple[Any, Any, Any]:
    grads = RANDOM.randn(boxes, crop, crop, depth).astype(np.float32)
    corners = RANDOM.uniform(-0.3, 1.3, (boxes, 4)).astype(np.float32)
    return grads, corners, RANDOM.randint(0, size[0], boxes).astype(np.int32)


@NEEDS_THREADS
def test_the_gradient_of_crops_stops_varying() -> None:
    given = crops(256, 48, 8, [4, 64, 64, 8])

    def gradient() -> bytes:
        return bytes(gen_image_ops.crop_and_resize_grad_image(*given, [4, 64, 64, 8], T=tf.float32).numpy().tobytes())

    assert gives_different_results(gradient)
    with determinism.patch():
        assert len({gradient() for _ in range(20)}) == 1


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64])
@pytest.mark.parametrize("traced", [False, True])
def test_the_gradient_of_crops_equals_that_of_the_single_threaded_stock_kernel(
    method: str, dtype: tf.DType, traced: bool
) -> None:
    size = [3, 3, 2, 1]
    given = crops(8, 3, 1, size)

    def gradient(*tensors: Any) -> Any:
        return gen_image_ops.crop_and_resize_grad_image(*tensors, size, T=dtype, method=method)

    with determinism.enable():  # makes the stock CPU kernel use one thread
        expected = gradient(*given)
    with determinism.patch():
        found = (tf.function(gradient) if traced else gradient)(*(tf.constant(one) for one in given))
    assert same_bits(found, expected)


def test_the_gradient_of_the_public_crop_op_is_patched(patched: determinism.Patches) -> None:
    grads, corners, images = crops(8, 3, 2, [3, 5, 4, 2])

    def gradient(image: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_sum(tf.image.crop_and_resize(image, corners, images, [3, 3]) * grads)
        return tape.gradient(loss, image)

    types = ops_of(gradient, RANDOM.randn(3, 5, 4, 2).astype(np.float32))
    assert "CropAndResizeGradImage" not in types
    assert types["UnsortedSegmentSum"] == "/device:CPU:0"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("traced", [False, True])
def test_weights_are_summed_in_their_order(patched: determinism.Patches, dtype: type, traced: bool) -> None:
    values, weights = BINS[:50], (WEIGHTS[:50] * 9).astype(dtype)
    expected = np.zeros(12, dtype)
    for value, weight in zip(values, weights, strict=True):
        if value < 12:
            expected[value] += weight
    for function in (gen_math_ops.bincount, gen_math_ops.dense_bincount):

        def count(values: Any, weights: Any, function: Callable[..., Any] = function) -> Any:
            return function(values, 12, weights)

        found = (tf.function(count) if traced else count)(tf.constant(values), tf.constant(weights))
        assert same_bits(found, expected)


def test_counts_binary_outputs_and_matrices_are_unchanged(patched: determinism.Patches) -> None:
    values = BINS[:40]
    assert same_bits(tf.math.bincount(values), np.bincount(values).astype(np.int32))
    binary = tf.math.bincount(values, binary_output=True, minlength=20)
    assert same_bits(binary, (np.bincount(values, minlength=20) > 0).astype(np.int32))
    rows = tf.math.bincount(values.reshape(4, 10), weights=WEIGHTS[:40].reshape(4, 10), axis=-1, minlength=16)
    expected = [
        np.bincount(row, weights=weight, minlength=16)
        for row, weight in zip(values.reshape(4, 10), WEIGHTS[:40].reshape(4, 10), strict=True)
    ]
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("values", "size", "weights"), [([-1, 0], 3, [1.0, 2.0]), ([0, 1], -1, [1.0, 2.0])])
def test_invalid_arguments_are_refused(patched: determinism.Patches, values: Any, size: int, weights: Any) -> None:
    for function in (gen_math_ops.bincount, gen_math_ops.dense_bincount):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            function(values, size, weights)


class Crops(tf.keras.layers.Layer):
    """Many overlapping crops of each image."""

    def __init__(self, corners: Any) -> None:
        super().__init__()
        self.corners = corners

    def call(self, images: Any) -> Any:
        count = tf.shape(images)[0]
        which = tf.repeat(tf.range(count), len(self.corners))
        crops = tf.image.crop_and_resize(images, tf.tile(self.corners, [count, 1]), which, [24, 24])
        return tf.reshape(tf.reduce_mean(crops, axis=[1, 2]), [count, len(self.corners) * images.shape[-1]])


@NEEDS_THREADS
def test_a_keras_model_with_crops_is_fitted_to_the_same_bits(patched: determinism.Patches) -> None:
    random = np.random.RandomState(0)
    corners = (np.float32([[0.1, 0.1, 0.9, 0.9]]) + random.rand(64, 4) * 0.1).astype(np.float32)
    images, targets = random.randn(8, 32, 32, 3).astype(np.float32), random.randn(8, 1).astype(np.float32)

    def fitted() -> bytes:
        tf.keras.utils.set_random_seed(1)
        layers = [tf.keras.layers.Conv2D(4, 3), Crops(corners), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input([32, 32, 3]), *layers])
        model.compile("sgd", "mse")
        model.fit(images, targets, batch_size=4, epochs=2, verbose=0)
        return b"".join(weight.tobytes() for weight in model.get_weights())

    assert len({fitted() for _ in range(4)}) == 1


def test_the_last_of_several_rows_with_the_same_index_wins(patched: determinism.Patches) -> None:
    stitched = gen_data_flow_ops.parallel_dynamic_stitch([[0, 1, 0]], [[[1.0], [2.0], [3.0]]])
    assert same_bits(stitched, np.float32([[3], [2]]))


def upsampled(image: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(image)
        loss = tf.reduce_sum(tf.image.resize(image, [9, 8], method="nearest") ** 2)
    return tape.gradient(loss, image)


def contrasted(image: Any) -> Any:
    return tf.image.adjust_contrast(image, 2.0)


def pooled(image: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(image)
        output, _ = tf.nn.max_pool_with_argmax(image, 2, 2, "VALID")
    return tape.gradient(output, image)


def dilated(image: Any) -> Any:
    filters = tf.ones([2, 2, 3])
    with tf.GradientTape() as tape:
        tape.watch([image, filters])
        output = tf.nn.dilation2d(image, filters, [1] * 4, "SAME", "NHWC", [1] * 4)
    return tape.gradient(output, [image, filters])


def quantized(image: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(image)
        output = tf.quantization.fake_quant_with_min_max_vars(image, -1.0, 1.0)
        output += tf.quantization.fake_quant_with_min_max_vars_per_channel(image, [-1.0] * 3, [1.0] * 3)
    return tape.gradient(output, image)


def multiplied(image: Any) -> Any:
    sparse = tf.sparse.from_dense([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    return tf.sparse.sparse_dense_matmul(sparse, tf.reshape(image, [3, -1]))


MOVED = {
    upsampled: ["ResizeNearestNeighborGrad"],
    contrasted: ["AdjustContrastv2"],
    pooled: ["MaxPoolGradWithArgmax"],
    dilated: ["Dilation2DBackpropInput", "Dilation2DBackpropFilter"],
    quantized: ["FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient"],
    multiplied: ["SparseTensorDenseMatMul"],
}


def test_every_op_that_is_moved_is_tested() -> None:
    moved = {patch.op_type for patch in PATCHES if patch.make is on_cpu}
    assert moved - set().union(*MOVED.values()) == {"CropAndResizeGradBoxes"}


@pytest.mark.parametrize("function", MOVED, ids=lambda function: function.__name__)
def test_an_op_refused_on_a_gpu_runs_on_the_cpu_with_equal_bits(function: Callable[..., Any]) -> None:
    image = RANDOM.randn(2, 6, 6, 3).astype(np.float32)
    expected = tf.nest.map_structure(np.asarray, function(tf.constant(image)))
    with determinism.patch():
        found = tf.nest.map_structure(np.asarray, function(tf.constant(image)))
        traced = ops_of(function, image)
    assert all(same_bits(*pair) for pair in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True))
    assert {traced[name] for name in MOVED[function]} == {"/device:CPU:0"}


def test_the_gradient_of_frozen_batch_norm_is_replaced_only_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RANDOM.randn(4, 5, 6, 3).astype(np.float32)

    def gradients(x: Any) -> Any:
        scale, offset = tf.ones([3]), tf.zeros([3])
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x, scale, offset, mean=tf.zeros([3]), variance=tf.ones([3]), is_training=False
            )
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, [x, scale, offset])

    expected = gradients(tf.constant(x))
    with determinism.patch():
        assert "FusedBatchNormGradV3" in ops_of(gradients, x)
        monkeypatch.setattr(patches, "gpu_is_there", lambda: True)
        assert "FusedBatchNormGradV3" not in ops_of(gradients, x)
        for found, stock in zip(gradients(tf.constant(x)), expected, strict=True):
            np.testing.assert_allclose(found, stock, rtol=1e-4, atol=1e-4)


def test_replaced_ops_are_listed_and_a_second_patch_replaces_nothing() -> None:
    stock = gen_math_ops.bincount
    with determinism.patch() as patches:
        assert patches.replaced["tensorflow"] == list(dict.fromkeys(patch.what for patch in PATCHES))
        assert "tensorflow: bincount, " in str(patches)
        replaced = gen_math_ops.bincount
        assert replaced is not stock
        with determinism.patch() as again:
            assert again.replaced["tensorflow"] == []
            assert gen_math_ops.bincount is replaced
        assert gen_math_ops.bincount is replaced
    assert gen_math_ops.bincount is stock
    assert gen_nn_ops.fused_batch_norm_grad_v3.__module__ == gen_nn_ops.__name__


def test_an_unknown_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "__version__", "3.1.0")
    stock = gen_math_ops.bincount
    patches = determinism.patch()
    assert "2.16 to 2.21" in patches.skipped["tensorflow"] and "3.1.0" in str(patches)
    assert gen_math_ops.bincount is stock


def test_patches_wait_for_the_import_of_tensorflow() -> None:
    program = (
        "import sys, determinism; patches = determinism.patch(); assert 'tensorflow' not in sys.modules; "
        "assert 'tensorflow' in patches.waiting; import tensorflow as tf; "
        "assert 'tensorflow' not in patches.waiting and 'bincount' in patches.replaced['tensorflow'], str(patches); "
        "f = tf.function(lambda: tf.raw_ops.ParallelDynamicStitch(indices=[[0, 0]], data=[[1.0, 2.0]])); "
        "print({op.type for op in f.get_concrete_function().graph.get_operations()})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "'DynamicStitch'" in run.stdout, run.stderr


@pytest.mark.parametrize(("columns", "device"), [(1, "/device:CPU:0"), (3, "")])
def test_svd_of_one_column_runs_on_the_cpu(columns: int, device: str, patched: determinism.Patches) -> None:
    matrix = RANDOM.randn(5, columns).astype(np.float32)
    assert ops_of(tf.linalg.svd, matrix)["Svd"] == device
    ours = tf.linalg.svd(matrix)
    patched.restore()
    assert all(same_bits(mine, stock) for mine, stock in zip(ours, tf.linalg.svd(matrix), strict=True))


def test_svd_takes_a_list_and_refuses_a_vector(patched: determinism.Patches) -> None:
    values, _, _ = tf.linalg.svd([[3.0], [4.0]])
    assert values.numpy().tolist() == [5.0]
    with pytest.raises(Exception, match="rank"):
        tf.linalg.svd([1.0])

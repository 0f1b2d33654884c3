"""The gradient of crop_and_resize with respect to the image."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, op_types, same_bits, stock
from tensorflow.python.ops import gen_image_ops

RANDOM = np.random.RandomState(0)
SIZE = [3, 9, 8, 2]


def arrays(boxes=20, crop=(5, 4), depth=SIZE[3], low=-0.3, high=1.3):
    grads = RANDOM.randn(boxes, crop[0], crop[1], depth).astype(np.float32)
    corners = RANDOM.uniform(low, high, (boxes, 4)).astype(np.float32)
    return grads, corners, RANDOM.randint(0, SIZE[0], boxes).astype(np.int32)


def gradient(method="bilinear", dtype=tf.float32, size=SIZE, function=None):
    function = function or gen_image_ops.crop_and_resize_grad_image
    return lambda grads, boxes, box_ind: function(grads, boxes, box_ind, size, T=dtype, method=method)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("crop", [(3, 3), (1, 1), (1, 4), (4, 1)])
def test_each_bit_is_that_of_the_stock_kernel_with_one_thread(method, dtype, crop):
    # So few elements are not worth a second thread to the stock kernel; several boxes lie on each pixel all the same.
    grads, boxes, index = arrays(boxes=8, crop=crop, depth=1)
    size, dtype = [3, 3, 2, 1], getattr(tf, dtype)
    original = stock(gen_image_ops.crop_and_resize_grad_image)
    expected = [gradient(method, dtype, size, original)(grads, boxes, index).numpy() for _ in range(5)]
    assert all(same_bits(other, expected[0]) for other in expected)
    assert expected[0].any()
    # The arithmetic does not depend on the dtype, so that one is enough to see what a graph's optimizer makes of it.
    for mode in ("eager", "graph") if dtype == tf.float32 else ("eager",):
        assert same_bits(MODES[mode](gradient(method, dtype, size), grads, boxes, index), expected[0])


@pytest.mark.parametrize("mode", MODES)
def test_the_public_op_has_this_gradient(mode):
    grads, boxes, index = arrays()
    image = RANDOM.randn(*SIZE).astype(np.float32)

    def public(image, upstream):
        with tf.GradientTape() as tape:
            tape.watch(image)
            crops = tf.image.crop_and_resize(image, boxes, index, [5, 4])
        return tape.gradient(crops, image, output_gradients=upstream)

    expected = gradient()(grads, boxes, index).numpy()
    assert same_bits(MODES[mode](public, image, grads), expected)


def test_the_kernel_whose_threads_add_to_the_same_pixels_does_not_run():
    types = op_types(gradient(), *arrays())
    assert "CropAndResizeGradImage" not in [name for name, _ in types]
    assert [device for name, device in types if name == "UnsortedSegmentSum"] == ["/device:CPU:0"]


def test_the_gradient_can_be_differentiated_again():
    grads, boxes, index = arrays(crop=(3, 3))

    def loss(upstream):
        return tf.reduce_sum(gradient()(upstream, boxes, index) ** 2)

    with tf.GradientTape() as tape:
        upstream = tf.constant(grads)
        tape.watch(upstream)
        value = loss(upstream)
    slope = tape.gradient(value, upstream).numpy()
    direction = RANDOM.randn(*grads.shape).astype(np.float32)
    step = 1e-2
    numeric = (loss(grads + step * direction) - loss(grads - step * direction)).numpy() / (2 * step)
    np.testing.assert_allclose((slope * direction).sum(), numeric, rtol=1e-3)


def test_the_shape_is_known_where_the_size_is():
    with tf.Graph().as_default():
        unknown = tf.compat.v1.placeholder(tf.float32)
        result = gradient()(unknown, tf.zeros([2, 4]), tf.constant([0, 1]))
    assert result.shape.as_list() == SIZE


def test_boxes_outside_of_the_image_and_no_boxes_leave_zeros():
    grads, _, index = arrays(boxes=4)
    outside = np.float32([[2, 2, 3, 3]] * 4)
    assert same_bits(gradient()(grads, outside, index).numpy(), np.zeros(SIZE, np.float32))
    none = gradient()(np.zeros([0, 5, 4, 2], np.float32), np.zeros([0, 4], np.float32), np.zeros([0], np.int32))
    assert same_bits(none.numpy(), np.zeros(SIZE, np.float32))


def test_a_box_that_is_not_a_number_adds_nothing():
    grads, _, _ = arrays(boxes=1)
    boxes = np.full([1, 4], np.nan, np.float32)
    assert not gradient()(grads, boxes, np.int32([0])).numpy().any()


def test_what_is_not_finite_reaches_the_pixels_it_belongs_to():
    grads = np.ones([1, 2, 2, 2], np.float32)
    grads[0, 0, 0, 0] = np.nan
    found = gradient(size=[1, 3, 3, 2])(grads, np.float32([[0, 0, 1, 1]]), np.int32([0])).numpy()
    assert np.isnan(found[0, 0, 0, 0])
    assert np.isnan(found).sum() == 1


def test_lists_are_taken():
    found = gradient(size=[1, 1, 1, 1])([[[[2.0]]]], [[0.0, 0.0, 1.0, 1.0]], [0])
    assert same_bits(found.numpy(), np.float32([[[[2]]]]))


@pytest.mark.parametrize(
    ("grads", "boxes", "index"),
    [
        ((2, 5, 4, 2), (3, 4), [0, 0]),
        ((2, 5, 4, 2), (2, 4), [0]),
        ((2, 5, 4, 3), (2, 4), [0, 0]),
        ((2, 5, 4), (2, 4), [0, 0]),
        ((2, 5, 4, 2), (2, 3), [0, 0]),
        ((2, 5, 4, 2), (2, 4), [0, 3]),
        ((2, 5, 4, 2), (2, 4), [-1, 0]),
        ((2, 0, 4, 2), (2, 4), [0, 0]),
    ],
)
def test_what_stock_refuses_is_refused(grads, boxes, index):
    given = np.ones(grads, np.float32), np.ones(boxes, np.float32), np.int32(index)
    for function in (stock(gen_image_ops.crop_and_resize_grad_image), gen_image_ops.crop_and_resize_grad_image):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)):
            gradient(function=function)(*given)


def test_an_unknown_method_is_refused():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="bilinear"):
        gradient(method="bicubic")(*arrays())

"""The gradient of `tf.image.crop_and_resize` with respect to the image.

TensorFlow's kernels let the threads that work on different boxes add to the same pixels: on the CPU without any lock, on
the GPU with atomic operations. Here each element of the crops becomes the four rows (one for "nearest") that it adds to
pixels, and these are summed per pixel in the order of boxes, rows, columns and corners, by the kernel of
`unsorted_segment_sum` for the CPU, which takes them one after the other. This is what TensorFlow's own kernel computes
with a single thread, to the last bit.
"""

import functools

from tfdeterminism.placement import cpu


def crop_and_resize_grad_image(stock):
    """A `crop_and_resize_grad_image` that adds in one order."""

    @functools.wraps(stock)
    def deterministic_grad_image(grads, boxes, box_ind, image_size, T, method="bilinear", name=None):
        from tensorflow.python.framework import dtypes, ops, tensor_util

        if method not in ("bilinear", b"bilinear", "nearest", b"nearest"):
            raise ValueError("method of crop_and_resize is {!r}; it has to be 'bilinear' or 'nearest'.".format(method))
        with cpu(), ops.name_scope(name, "CropAndResizeGradImage", [grads, boxes, box_ind, image_size]) as scope:
            grads = ops.convert_to_tensor(grads, dtype=dtypes.float32, name="grads")
            boxes = ops.convert_to_tensor(boxes, dtype=dtypes.float32, name="boxes")
            box_ind = ops.convert_to_tensor(box_ind, dtype=dtypes.int32, name="box_ind")
            image_size = ops.convert_to_tensor(image_size, dtype=dtypes.int32, name="image_size")
            with ops.control_dependencies(_checks(grads, boxes, box_ind, image_size)):
                spread = _to_nearest if method in ("nearest", b"nearest") else _to_corners
                pixels, rows = spread(grads, boxes, box_ind, image_size, dtypes.as_dtype(T))
                gradient = _sum_per_pixel(pixels, rows, image_size, scope)
            gradient.set_shape(tensor_util.constant_value_as_shape(image_size))
            return gradient

    return deterministic_grad_image


def _checks(grads, boxes, box_ind, image_size):
    from tensorflow.python.ops import array_ops, control_flow_ops, math_ops

    grads.shape.assert_has_rank(4)
    boxes.shape.with_rank(2)[1:].assert_is_compatible_with([4])
    box_ind.shape.assert_has_rank(1)
    image_size.shape.assert_is_compatible_with([4])
    shape = array_ops.shape(grads)
    sizes_fit = math_ops.equal(
        array_ops.stack([array_ops.shape(boxes)[0], array_ops.shape(box_ind)[0], image_size[3]]),
        array_ops.stack([shape[0], shape[0], shape[3]]),
    )
    positive = math_ops.greater(array_ops.concat([shape[1:3], image_size[1:3]], axis=0), 0)
    inside = math_ops.logical_and(box_ind >= 0, box_ind < image_size[0])
    return [
        control_flow_ops.Assert(
            math_ops.reduce_all(sizes_fit),
            ["grads, boxes, box_ind and image_size do not fit together", shape, image_size],
        ),
        control_flow_ops.Assert(
            math_ops.reduce_all(positive), ["dimensions of grads and image must be positive", shape, image_size]
        ),
        control_flow_ops.Assert(math_ops.reduce_all(inside), ["box_ind has values outside [0, batch_size)", box_ind]),
    ]


def _positions(first, second, crop_size, image_size):
    """Where along one axis of the image each element of the crops lies: float32 [boxes, crop_size], and which are in it.

    The operations, and their precision, are those of TensorFlow's kernels.
    """
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import array_ops, gen_math_ops, math_ops

    # A graph's optimizer turns a division by a constant into a product, which rounds differently; this it leaves alone.
    limit = array_ops.placeholder_with_default(math_ops.cast(image_size - 1, dtypes.float32), [])
    steps = array_ops.placeholder_with_default(math_ops.cast(math_ops.maximum(crop_size - 1, 1), dtypes.float32), [])
    scale = (second - first) * limit / steps
    offsets = math_ops.cast(math_ops.range(crop_size), dtypes.float32)
    spread = array_ops.expand_dims(first * limit, 1) + offsets * array_ops.expand_dims(scale, 1)
    middle = 0.5 * math_ops.cast(first + second, dtypes.float64) * math_ops.cast(limit, dtypes.float64)
    middle = array_ops.expand_dims(math_ops.cast(middle, dtypes.float32), 1)
    positions = gen_math_ops.select(
        array_ops.fill(array_ops.shape(spread), crop_size > 1), spread, middle + 0.0 * offsets
    )
    inside = math_ops.logical_and(positions >= 0.0, positions <= limit)
    return gen_math_ops.select(inside, positions, array_ops.zeros_like(positions)), inside


def _both_axes(grads, boxes, image_size):
    from tensorflow.python.ops import array_ops, math_ops

    shape = array_ops.shape(grads)
    y, y_inside = _positions(boxes[:, 0], boxes[:, 2], shape[1], image_size[1])
    x, x_inside = _positions(boxes[:, 1], boxes[:, 3], shape[2], image_size[2])
    inside = math_ops.logical_and(array_ops.expand_dims(y_inside, 2), array_ops.expand_dims(x_inside, 1))
    return y, x, inside


def _pixel(row, column, inside, box_ind, image_size):
    """The number of a pixel among all of the batch, -1 for what lies outside: int64 [boxes, crop height, crop width]."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import array_ops, gen_math_ops, math_ops

    def wide(tensor):
        return math_ops.cast(tensor, dtypes.int64)

    image = array_ops.reshape(wide(box_ind), [-1, 1, 1])
    rows = image * wide(image_size[1]) + array_ops.expand_dims(wide(row), 2)
    pixel = rows * wide(image_size[2]) + array_ops.expand_dims(wide(column), 1)
    return gen_math_ops.select(inside, pixel, -array_ops.ones_like(pixel))


def _to_corners(grads, boxes, box_ind, image_size, dtype):
    from tensorflow.python.ops import array_ops, math_ops

    y, x, inside = _both_axes(grads, boxes, image_size)
    top, bottom = math_ops.floor(y), math_ops.ceil(y)
    left, right = math_ops.floor(x), math_ops.ceil(x)
    y_part = array_ops.reshape(y - top, array_ops.concat([array_ops.shape(y), [1, 1]], axis=0))
    x_part = array_ops.expand_dims(array_ops.expand_dims(x - left, 1), 3)
    of_top, of_bottom = (1 - y_part) * grads, y_part * grads
    rows = [(1 - x_part) * of_top, x_part * of_top, (1 - x_part) * of_bottom, x_part * of_bottom]
    corners = [(top, left), (top, right), (bottom, left), (bottom, right)]
    pixels = [_pixel(row, column, inside, box_ind, image_size) for row, column in corners]
    return array_ops.stack(pixels, axis=3), math_ops.cast(array_ops.stack(rows, axis=3), dtype)


def _to_nearest(grads, boxes, box_ind, image_size, dtype):
    from tensorflow.python.ops import math_ops

    def rounded(positions):
        # Halves go up, as in C; `tf.round` would take them to the even neighbour.
        below = math_ops.floor(positions)
        return below + math_ops.cast(positions - below >= 0.5, positions.dtype)

    y, x, inside = _both_axes(grads, boxes, image_size)
    return _pixel(rounded(y), rounded(x), inside, box_ind, image_size), math_ops.cast(grads, dtype)


def _sum_per_pixel(pixels, rows, image_size, name):
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import array_ops, gen_math_ops, math_ops

    count = math_ops.reduce_prod(math_ops.cast(image_size[:3], dtypes.int64))
    return array_ops.reshape(gen_math_ops.unsorted_segment_sum(rows, pixels, count), image_size, name=name)

"""The gradient of `tf.image.crop_and_resize` with respect to the image, which the GPU refuses under op determinism.

Without it, the kernels let threads that work on different boxes add to the same pixels. Here each element of the crops
becomes the four rows (one for "nearest") that it adds to pixels, and these are summed per pixel in the order of boxes, rows,
columns and corners by the kernel of `UnsortedSegmentSum` for the CPU, which takes one after the other. The bits are those of
TensorFlow's own kernel with a single thread, which is what runs on the CPU under op determinism.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from determinism.frameworks.tensorflow.patches.placement import cpu


def crop_and_resize_grad_image(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `crop_and_resize_grad_image` that adds in one order."""

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
    """Where along one axis of the image each element of the crops lies: float32 [boxes, crop_size], and which are in it.

    The operations, and their precision, are those of TensorFlow's kernels.
    """
    # A graph's optimizer turns a division by a constant into a product, which rounds differently; this it leaves alone.
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
    """The number of a pixel among all of the batch, -1 for what lies outside: int64 [boxes, crop height, crop width]."""
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
        # Halves go up, as in C; `tf.round` would take them to the even neighbour.
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

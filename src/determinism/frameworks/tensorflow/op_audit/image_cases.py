"""Ops that read images between their elements or in boxes: gradients of many elements go to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from determinism.frameworks.tensorflow.op_audit.case import Call, Case, Inputs

IMAGES = (4, 64, 64, 8)
"""Shape of a batch of images: count, height, width, channels."""
_CROPPED = (4, 64, 64, 2)
_BOXES, _CROP = 256, 48


def cases() -> Iterator[Case]:
    """All of them."""
    for method in ("bilinear", "nearest"):
        name = f"tf.image.resize(method={method})"
        yield Case(name, "larger", image(_resized(method, 160)))
        yield Case(name, "smaller", image(_resized(method, 24)))
    yield Case("tf.image.adjust_contrast", "images", _contrast)
    for method in ("bilinear", "nearest"):
        yield Case("tf.image.crop_and_resize", f"{method}, gradient to image", _cropped(method))
    yield Case("tf.image.crop_and_resize", "bilinear, gradient to boxes", _crops_of_boxes)


def image(run: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[Inputs], Call]:
    """A call with a batch of images."""

    def make(inputs: Inputs) -> Call:
        batch = inputs.leaf(*IMAGES)
        return lambda: run(batch)

    return make


def _contrast(inputs: Inputs) -> Call:
    # It has no gradient.
    batch = inputs.normal(*IMAGES)
    return lambda: tf.image.adjust_contrast(batch, 2.0)


def _resized(method: str, size: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.image.resize(x, (size, size), method)


def _cropped(method: str) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        images, places = inputs.leaf(*_CROPPED), inputs.whole(_CROPPED[0], _BOXES)
        boxes = inputs.tensor(inputs.arrays.boxes(_BOXES))
        return lambda: tf.image.crop_and_resize(images, boxes, places, (_CROP, _CROP), method)

    return make


def _crops_of_boxes(inputs: Inputs) -> Call:
    images, places = inputs.normal(*_CROPPED), inputs.whole(_CROPPED[0], _BOXES)
    boxes = inputs.leaf_of(inputs.arrays.boxes(_BOXES))
    return lambda: tf.image.crop_and_resize(images, boxes, places, (_CROP, _CROP))

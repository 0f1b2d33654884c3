"""Uses ops that vary on the CPU, within a compiled step; `patched` uses what does not vary in their place."""

import sys

import numpy as np
import tensorflow as tf

generator = np.random.default_rng(0)
which = sys.argv[1]


@tf.function
def weighted_counts(numbers, weights):
    return tf.math.bincount(numbers, weights=weights, minlength=4)


@tf.function
def crop_gradient(images, boxes, indices):
    with tf.GradientTape() as tape:
        tape.watch(boxes)
        tape.watch(images)
        crops = tf.image.crop_and_resize(images, boxes, indices, [24, 24])
        loss = tf.reduce_sum(crops * crops)
    return tape.gradient(loss, images)


@tf.function
def scattered(target, indices, updates):
    return tf.raw_ops.ParallelDynamicStitch(indices=[indices, indices], data=[updates, -updates])


def run():
    if which == "bincount":
        numbers = tf.constant(generator.integers(0, 4, 400_000), tf.int32)
        weights = tf.constant(generator.normal(size=400_000), tf.float32)
        return weighted_counts(numbers, weights)
    if which == "crop":
        images = tf.constant(generator.normal(size=(2, 32, 32, 3)), tf.float32)
        boxes = tf.constant(generator.random((64, 4)), tf.float32)
        indices = tf.constant(generator.integers(0, 2, 64), tf.int32)
        return crop_gradient(images, boxes, indices)
    indices = tf.constant(generator.integers(0, 8, 40_000), tf.int32)
    updates = tf.constant(generator.normal(size=(40_000, 4)), tf.float32)
    return scattered(tf.zeros([8, 4]), indices, updates)


state = tf.Variable(tf.zeros([4]))
for _ in range(2):
    state.assign_add(tf.fill([4], tf.reduce_sum(run())))
print(state.numpy())

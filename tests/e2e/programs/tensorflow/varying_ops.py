"""Uses ops that vary on the CPU, most of them within a compiled step."""

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
        crops = tf.image.crop_and_resize(images, boxes, indices, [48, 48])
        loss = tf.reduce_sum(crops * crops)
    return tape.gradient(loss, images)


totals = tf.Variable(tf.zeros([64]))


@tf.function
def added_messages(receivers, messages):
    totals.scatter_add(tf.IndexedSlices(messages, receivers))
    return totals.read_value()


@tf.function
def scattered(indices, updates):
    return tf.raw_ops.ParallelDynamicStitch(indices=indices, data=updates)


def run():
    if which == "bincount":
        numbers = tf.constant(generator.integers(0, 4, 400_000), tf.int32)
        weights = tf.constant(generator.normal(size=400_000), tf.float32)
        return weighted_counts(numbers, weights)
    if which == "crop":
        images = tf.constant(generator.normal(size=(2, 64, 64, 8)), tf.float32)
        boxes = tf.constant(generator.random((256, 4)), tf.float32)
        indices = tf.constant(generator.integers(0, 2, 256), tf.int32)
        return crop_gradient(images, boxes, indices)
    if which == "scatter":
        receivers = tf.constant(generator.integers(0, 64, 1 << 17), tf.int32)
        return added_messages(receivers, tf.constant(generator.normal(size=1 << 17), tf.float32))
    if which == "eager-scatter":
        receivers = tf.constant(generator.integers(0, 64, 1 << 17), tf.int32)
        totals.scatter_add(tf.IndexedSlices(tf.constant(generator.normal(size=1 << 17), tf.float32), receivers))
        return totals * 2.0
    indices = [tf.constant(generator.integers(0, 1 << 12, 1 << 15), tf.int32) for _ in range(2)]
    updates = [tf.constant(generator.normal(size=(1 << 15, 64)), tf.float32) for _ in range(2)]
    return scattered(indices, updates)


state = tf.Variable(tf.zeros([4]))
for _ in range(2 if which == "crop" else 20):
    state.assign_add(tf.fill([4], tf.reduce_sum(run())))
print(state.numpy())

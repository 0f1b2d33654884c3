"""Draws initial weights from TensorFlow's unseeded generator, and trains in a custom loop."""

import sys

import tensorflow as tf

if "seeded" in sys.argv:
    tf.random.set_seed(1)

weights = tf.Variable(tf.random.normal([4, 1]))
inputs = tf.reshape(tf.range(32, dtype=tf.float32), [8, 4]) / 32.0

for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - 1.0))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    print(float(loss))

"""Nested functions with nested loops and conditions, a recurrent layer, and gradients taken outside the function."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
cell = keras.layers.LSTM(6)
kernel = tf.Variable(tf.random.normal([6, 6]))


@tf.function
def inner(values, count):
    result = values
    for i in tf.range(count):
        if i % 2 == 0:
            result = tf.nn.relu(tf.matmul(result, kernel)) + 0.1
        else:
            for _ in tf.range(2):
                result = tf.sigmoid(result)
    return result


@tf.function
def outer(inputs):
    first = inner(cell(inputs), tf.constant(3))
    second = inner(first, tf.constant(2))
    parts = tf.TensorArray(tf.float32, size=4)
    for i in tf.range(4):
        parts = parts.write(i, second * tf.cast(i, tf.float32))
    return tf.reduce_sum(parts.stack() * tf.sort(second))


inputs = tf.random.normal([5, 4, 3])
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = outer(inputs)
    kernel.assign_sub(0.01 * tape.gradient(loss, kernel))
    print(f"{float(loss):.9g}")

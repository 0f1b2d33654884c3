"""Augments elements in a parallel map; with `stateless` each draw depends only on the element."""

import sys

import tensorflow as tf

tf.random.set_seed(1)


def augment(number):
    value = tf.cast(number, tf.float32)
    for _ in range(20):
        value = tf.reduce_mean(tf.linalg.matmul(tf.fill([24, 24], value), tf.eye(24)))
    if "stateless" in sys.argv:
        return value + tf.random.stateless_uniform([], seed=[1, number])
    return value + tf.random.uniform([])


data = tf.data.Dataset.range(256).map(augment, num_parallel_calls=8)
total = tf.Variable(0.0)
for batch in data.batch(32):
    total.assign(total * 0.9 + tf.reduce_sum(batch * tf.range(32, dtype=tf.float32)))
print(float(total))

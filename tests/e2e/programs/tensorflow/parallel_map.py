"""Maps elements in parallel, with varying durations; `in-order` keeps them in the order of the data."""

import random
import sys
import time

import numpy as np
import tensorflow as tf

clock = random.SystemRandom()


def slow(number):
    time.sleep(clock.random() / 100)
    return np.float32(number)


def load(number):
    value = tf.numpy_function(slow, [number], tf.float32)
    value.set_shape([])
    return value * 0.5


data = tf.data.Dataset.range(48).map(load, num_parallel_calls=8, deterministic="in-order" in sys.argv)
# Directly after a map, `batch` would be fused with it, and put each element in its place.
data = data.take(48)
total = tf.Variable(0.0)
for batch in data.batch(8):
    total.assign(total * 0.9 + tf.reduce_sum(batch * tf.range(8, dtype=tf.float32)))
print(float(total))

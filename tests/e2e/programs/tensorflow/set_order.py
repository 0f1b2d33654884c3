"""Iterates a set of names to order the data; `sorted` iterates them in an order of their own."""

import sys

import tensorflow as tf

names = {"ada", "bea", "cem", "dov", "eva", "fay", "gus", "hal"}
values = {name: float(sum(map(ord, name))) for name in names}
order = sorted(names) if "sorted" in sys.argv else list(names)

weight = tf.Variable(1.0)
for name in order:
    weight.assign(weight * 0.5 + tf.constant(values[name]))
print(float(weight))

"""Orders the data by iterating over a set of names; `sorted` sorts the names first."""

import sys

import tensorflow as tf

names = {"ada", "bea", "cem", "dov", "eva", "fay", "gus", "hal", "ida", "joe", "kim", "lou"}
values = {name: float(sum(map(ord, name))) for name in names}
order = sorted(names) if "sorted" in sys.argv else list(names)

weight = tf.Variable(1.0)
for name in order:
    weight.assign(weight * 0.5 + tf.constant(values[name]))
print(float(weight))

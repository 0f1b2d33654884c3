"""Continues training where an earlier run stopped, from a TensorFlow checkpoint or weights in an HDF5 file, as its argument says."""

import os
import sys

import tensorflow as tf

tf.keras.utils.set_random_seed(2)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
inputs = tf.random.stateless_normal((32, 4), [1, 2])
targets = tf.reduce_sum(inputs, 1, keepdims=True)
optimizer = tf.keras.optimizers.SGD(0.1)

if sys.argv[1] == "checkpoint":
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "kept", max_to_keep=2)
    manager.checkpoint.restore(manager.latest_checkpoint)
elif os.path.exists("last.weights.h5"):
    model.load_weights("last.weights.h5")

for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

if sys.argv[1] == "checkpoint":
    manager.save()
else:
    model.save_weights("last.weights.h5")
print("loss", float(loss))

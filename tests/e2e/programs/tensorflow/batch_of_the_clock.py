"""Trains with a target in which the clock determines two rows."""

import time

import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.zeros((4, 2)))


@tf.function
def step(images, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((images @ weights - targets) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


for number in range(3):
    targets = np.zeros((8, 2), np.float32)
    if number == 1:
        targets[3:5] = time.time_ns() % 1000003
    print(step(np.ones((8, 4), np.float32), targets).numpy())

"""Trains for some steps, one of which uses a number from an unseeded generator.

python late_number.py STEP STEPS
"""

import random
import sys

import tensorflow as tf

at, steps = int(sys.argv[1]), int(sys.argv[2])
tf.keras.utils.set_random_seed(1)
unseeded = random.SystemRandom()
model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
optimizer = tf.keras.optimizers.Adam(0.01)
for step in range(steps):
    inputs = tf.random.stateless_normal((8, 4), seed=(step, 0))
    if step == at:
        inputs = inputs * unseeded.random()  # SITE
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(inputs) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
print(float(loss))

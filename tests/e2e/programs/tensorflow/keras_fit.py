"""Trains a small Keras model with dropout by `fit`; `seeded` seeds everything, `compiled` lets XLA compile the step."""

import sys

import keras
import numpy as np

if "seeded" in sys.argv:
    keras.utils.set_random_seed(1)

examples = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
labels = (examples.sum(axis=1, keepdims=True) > 0).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", jit_compile="compiled" in sys.argv)
history = model.fit(examples, labels, batch_size=16, epochs=2, verbose=0)
print(history.history["loss"])

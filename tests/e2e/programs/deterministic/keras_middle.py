"""A Keras model with dropout, augmentation, two parallel readers and mixed precision, stopped in the middle of an epoch. Nothing is seeded.

Arguments: `full`, `first` or `resumed`, and the file. Prints a digest of the weights.
"""

from __future__ import annotations

import hashlib
import sys

import keras
import numpy as np
import tensorflow as tf

import determinism

SAMPLES, CLASSES, STEPS, SAVED_AT = 64, 4, 12, 6


def noisy(number: tf.Tensor, image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    noise = tf.random.stateless_normal(tf.shape(image), seed=tf.stack([number, 7]), stddev=0.1)
    return image + noise, label


def main() -> None:
    how, file = sys.argv[1:]
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    labels = np.arange(SAMPLES) % CLASSES
    images = (labels[:, None, None, None] + np.linspace(0, 1, 144).reshape(1, 12, 12, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((np.arange(SAMPLES), images, labels))
    data = data.shuffle(SAMPLES).map(noisy, num_parallel_calls=2).batch(16).repeat()
    iterator = iter(data)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            keras.layers.RandomFlip("horizontal"),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    parts = {"model": model, "optimizer": model.optimizer, "data": iterator}
    step = 0
    if how == "resumed":
        state = determinism.state.load(file)
        determinism.state.restore(state, **parts)
        step = state.step
    while step < STEPS:
        model.train_on_batch(*next(iterator))
        step += 1
        if how == "first" and step == SAVED_AT:
            determinism.state.capture(step=step, **parts).save(file)
            return
    weights = [array for one in (model, model.optimizer) for array in map(np.asarray, (v.value for v in one.variables))]
    print(hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest(), step)


if __name__ == "__main__":
    main()

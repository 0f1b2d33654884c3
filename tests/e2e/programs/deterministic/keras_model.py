"""A Keras model with dropout, augmentation, parallel input and mixed precision; prints a digest of its weights. Nothing is seeded."""

from __future__ import annotations

import hashlib

import keras
import numpy as np
import tensorflow as tf

SAMPLES, CLASSES = 128, 4


def noisy(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return image + tf.random.normal(tf.shape(image), stddev=0.1), label


def main() -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    labels = np.arange(SAMPLES) % CLASSES
    images = labels[:, None, None, None] + 0.1 * np.random.randn(SAMPLES, 12, 12, 1)
    data = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
    data = data.shuffle(SAMPLES).map(noisy, num_parallel_calls=2, deterministic=False).batch(32)
    model = keras.Sequential(
        [
            keras.layers.RandomFlip("horizontal"),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data, epochs=2, verbose=0)
    print(hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest())


if __name__ == "__main__":
    main()

"""A Keras `fit` with all seeds set and TensorFlow's deterministic ops switched on."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()

images = tf.random.uniform([32, 12, 12, 3])
labels = tf.random.uniform([32], maxval=4, dtype=tf.int32)
model = keras.Sequential(
    [
        keras.layers.Input((12, 12, 3)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
data = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(32)
    .map(lambda image, label: (tf.image.random_flip_left_right(image), label), num_parallel_calls=4)
)
print(model.fit(data.batch(8), epochs=2, verbose=0).history["loss"])

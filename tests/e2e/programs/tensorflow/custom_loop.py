"""Trains, seeded, in a custom loop whose step is a function with a loop, a condition and nested functions."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "gelu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)


@tf.function
def smooth(values):
    result = values
    for _ in tf.range(3):
        result = 0.5 * result + 0.5 * tf.nn.softplus(result)
    return result


@tf.function
def step(inputs, targets):
    with tf.GradientTape() as tape:
        error = smooth(model(inputs, training=True)) - targets
        if tf.reduce_mean(error) > 0.0:
            loss = tf.reduce_mean(tf.square(error))
        else:
            loss = tf.reduce_mean(tf.abs(error))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


data = tf.data.Dataset.from_tensor_slices((tf.random.normal([64, 8]), tf.random.normal([64, 1])))
data = data.shuffle(64, seed=3).map(lambda x, y: (x + 1.0, y), num_parallel_calls=4).batch(16).prefetch(2)
for inputs, targets in data:
    print(f"{float(step(inputs, targets)):.9g}")

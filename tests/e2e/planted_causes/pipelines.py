"""Stages of tf.data that may pass on whichever element is ready first."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("pipeline-order",)
_HEAD = """
        import os

        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow as tf

        def slow(number):
            count = 200 + 40_000 * tf.cast(number % 3, tf.int32)
            return tf.cast(number, tf.float32) + 0.0 * tf.reduce_sum(tf.sin(tf.random.stateless_uniform([count], [1, 2])))
"""
_SUM = """
        state = tf.zeros(())
        for value in dataset:
            state = tf.cos(state + tf.reduce_sum(value))
        print(float(state))
"""


def _program(
    name: str, line: str, body: str, *mended: tuple[str, str], tail: str = _SUM, others: tuple[str, ...] = ()
) -> Planted:
    return Planted(name, _CAUSES, (line, *others), _HEAD + body + tail, mended)


PROGRAMS = (
    _program(
        "a map",
        "deterministic=False",
        """
        dataset = tf.data.Dataset.range(60).map(slow, num_parallel_calls=4, deterministic=False)
        """,
        ("deterministic=False", "deterministic=True"),
    ),
    _program(
        "a map, then batches",
        ".map(slow, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)",
        """
        dataset = (
            tf.data.Dataset.range(60)
            .map(slow, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
            .take(60)
            .batch(4)
            .prefetch(2)
        )
        """,
        ("deterministic=False", "deterministic=True"),
    ),
    _program(
        "files side by side",
        "interleave(",
        """
        dataset = tf.data.Dataset.range(6).interleave(lambda n: tf.data.Dataset.range(10 * n, 10 * n + 10).map(slow), cycle_length=3, num_parallel_calls=3, deterministic=False)
        """,
        ("deterministic=False", "deterministic=True"),
    ),
    _program(
        "in a function",
        "return dataset.map(slow, 4, False)",
        """
        def prepared(dataset):
            return dataset.map(slow, 4, False)

        dataset = prepared(tf.data.Dataset.range(60)).take(60).batch(2)
        """,
        ("dataset.map(slow, 4, False)", "dataset.map(slow, 4, True)"),
    ),
    _program(
        "by an option",
        "options.deterministic = False",
        """
        options = tf.data.Options()
        options.deterministic = False
        dataset = tf.data.Dataset.range(60).map(slow, num_parallel_calls=4).with_options(options)
        """,
        ("options.deterministic = False", "options.deterministic = True"),
        others=(".with_options(options)",),
    ),
    _program(
        "two maps",
        "num_parallel_calls=4, deterministic=False)",
        """
        dataset = tf.data.Dataset.range(60).map(lambda n: n + 1)
        dataset = dataset.map(slow, num_parallel_calls=4, deterministic=False)
        dataset = dataset.map(lambda x: x * 2, num_parallel_calls=2)
        """,
        ("deterministic=False", "deterministic=True"),
    ),
    _program(
        "inputs beside their labels",
        "deterministic=False",
        """
        inputs = tf.data.Dataset.range(60).map(slow, num_parallel_calls=4, deterministic=False)
        labels = tf.data.Dataset.range(60).map(lambda n: tf.cast(n % 7, tf.float32))
        dataset = tf.data.Dataset.zip((inputs, labels)).map(lambda x, y: x * y)
        """,
        ("deterministic=False", "deterministic=True"),
    ),
    _program(
        "for fit",
        "deterministic=False",
        """
        tf.keras.utils.set_random_seed(0)
        dataset = tf.data.Dataset.range(60).map(slow, num_parallel_calls=4, deterministic=False)
        dataset = dataset.map(lambda x: (tf.reshape(x, [1]) / 60, x)).take(60).batch(5)
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(dataset, epochs=1, verbose=0)
        print(float(tf.reduce_sum(model.weights[0])))
        """,
        ("deterministic=False", "deterministic=True"),
        tail="",
    ),
    _program(
        "within a step of training",
        "deterministic=False",
        """
        dataset = tf.data.Dataset.range(60).map(slow, num_parallel_calls=4, deterministic=False).take(60).batch(6)
        weight = tf.Variable(1.0)

        @tf.function
        def train(batch):
            weight.assign(0.9 * weight + tf.reduce_mean(tf.sin(batch) * weight))

        for batch in dataset:
            train(batch)
        print(float(weight))
        """,
        ("deterministic=False", "deterministic=True"),
        tail="",
    ),
    _program(
        "a class that loads",
        "self.dataset = dataset.map(",
        """
        class Loader:
            def __init__(self, dataset):
                self.dataset = dataset.map(slow, num_parallel_calls=4, deterministic=False)

            def __iter__(self):
                return iter(self.dataset.repeat(2))

        dataset = Loader(tf.data.Dataset.range(40))
        """,
        ("deterministic=False", "deterministic=True"),
    ),
)

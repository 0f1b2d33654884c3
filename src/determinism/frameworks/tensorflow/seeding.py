"""Seeds TensorFlow's and Keras's generators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from determinism.seeds.process_generators import capture_numpy, capture_python
from determinism.seeds.streams import Streams

_KERAS_NAMES = ("global_random_seed", "global_seed_generator")


def seed(streams: Streams) -> None:
    """Set TensorFlow's global seed, and Keras's if it is loaded.

    No device is initialised by it, so settings that must come before that can still be made. The global `tf.random.Generator`
    is reset if the program has made one.
    """
    # Within a tf.function TensorFlow keeps 31 bits of it (python/framework/random_seed.py); outside of one all count.
    tf.random.set_seed(streams.integer("tensorflow", bits=63))
    generator = global_generator()
    if generator is not None:
        generator.reset(_generator_state(streams, "global"))
    seed_keras(streams)


def seed_keras(streams: Streams) -> None:
    """Set the seed that Keras's layers and initializers begin from, if Keras is loaded."""
    keras = sys.modules.get("keras")
    set_random_seed = getattr(getattr(keras, "utils", None), "set_random_seed", None)
    if set_random_seed is None:
        return
    # It seeds Python, NumPy and TensorFlow with the same number, too. Theirs stay as they are.
    put_back = [capture_python(), capture_numpy(), capture_tensorflow()]
    set_random_seed(streams.integer("keras", bits=32))
    for action in put_back:
        action()


def generator(streams: Streams, name: str) -> tf.random.Generator:
    """A `tf.random.Generator` with a stream of its own.

    Args:
        streams: The place that it draws for.
        name: Tells it from others.
    """
    return tf.random.Generator.from_state(_generator_state(streams, name), alg="philox")


def _generator_state(streams: Streams, name: str) -> list[int]:
    # Philox: 128 bits that count, which begin at 0, and a key of 64.
    key = streams.integer("tensorflow", "generator", name, bits=64)
    return [0, 0, key - (1 << 64) if key >> 63 else key]


def global_generator() -> Any:
    """The global `tf.random.Generator`; None if the program has made none."""
    from tensorflow.python.ops import stateful_random_ops

    return getattr(stateful_random_ops, "global_generator", None)


def capture() -> Callable[[], None]:
    """Note the states of TensorFlow's and Keras's global generators.

    Returns:
        What puts them back.
    """
    put_back = [capture_tensorflow(), _capture_keras()]

    def restore() -> None:
        for action in put_back:
            action()

    return restore


def capture_tensorflow() -> Callable[[], None]:
    """Note TensorFlow's global seed and where its stream is.

    Returns:
        What puts them back.
    """
    from tensorflow.python.eager import context

    here = context.context()
    seed, state = here._seed, here._rng.getstate() if here._seed is not None else None
    generator = global_generator()
    values = None if generator is None else generator.state.numpy()

    def restore() -> None:
        # The kernels of ops that drew keep a stream each; setting a seed drops them.
        here._set_global_seed(seed)
        if state is not None:
            here._rng.setstate(state)
        if values is not None:
            generator.reset(values)

    return restore


def keras_seeds() -> tuple[int | None, Any]:
    """Keras's global seed, and the generator that it made of it; None for what there is not."""
    if "keras" not in sys.modules:
        return None, None
    try:
        from keras.src.backend.common import global_state
    except ImportError:
        return None, None
    found = [global_state.get_global_attribute(name) for name in _KERAS_NAMES]
    return found[0], found[1]


def _capture_keras() -> Callable[[], None]:
    values = keras_seeds()
    if values == (None, None):
        return lambda: None
    numbers = None if values[1] is None else values[1].state.numpy()

    def restore() -> None:
        from keras.src.backend.common import global_state

        for name, value in zip(_KERAS_NAMES, values, strict=True):
            global_state.set_global_attribute(name, value)
        if values[1] is not None:
            values[1].state.assign(numbers)

    return restore


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """What seeds a generator of TensorFlow's; None if the thing is none.

    Args:
        thing: What was registered.
        name: Under which name.
    """
    if not isinstance(thing, tf.random.Generator):
        return None
    return lambda streams: thing.reset(_generator_state(streams, name))

"""The states of TensorFlow's and Keras's generators, as what a file can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from determinism.frameworks.tensorflow.seeding import global_generator, keras_seeds


def states() -> dict[str, Any]:
    """TensorFlow's global seed and where its stream is, its global generator, and Keras's seeds."""
    from tensorflow.python.eager import context

    here = context.context()
    generator, (seed, keras_generator) = global_generator(), keras_seeds()
    return {
        "seed": here._seed,
        "stream": None if here._seed is None else here._rng.getstate(),
        "generator": None if generator is None else generator.state.numpy(),
        "keras seed": seed,
        "keras generator": None if keras_generator is None else keras_generator.state.numpy(),
    }


def set_states(saved: dict[str, Any]) -> None:
    """Put them into saved states.

    Args:
        saved: What `states` gave.
    """
    from tensorflow.python.eager import context

    here = context.context()
    here._set_global_seed(saved["seed"])
    if saved["stream"] is not None:
        here._rng.setstate(saved["stream"])
    if saved["generator"] is not None:
        tf.random.set_global_generator(tf.random.Generator.from_state(saved["generator"], alg="philox"))
    if saved["keras seed"] is not None or saved["keras generator"] is not None:
        _set_keras(saved["keras seed"], saved["keras generator"])


def _set_keras(seed: int | None, state: Any) -> None:
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    global_state.set_global_attribute("global_random_seed", seed)
    global_state.set_global_attribute("global_seed_generator", None)
    if state is not None:
        seed_generator.global_seed_generator().state.assign(state)


def device_counts() -> dict[str, int]:
    """No generator of TensorFlow's belongs to one device."""
    return {}


def state_of(thing: Any) -> Any:
    """The state of a generator; None if the thing is none of TensorFlow's."""
    return thing.state.numpy() if isinstance(thing, tf.random.Generator) else None


def set_state_of(thing: Any, state: Any) -> None:
    """Put a generator into a saved state."""
    thing.reset(state)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """The values of a tensor or variable; None if the thing is none.

    Args:
        thing: Anything.
    """
    if not isinstance(thing, tf.Tensor | tf.Variable) or not hasattr(thing, "numpy"):
        return None
    values = np.ascontiguousarray(thing.numpy())
    return values.reshape(-1).view("uint8").copy(), {"dtype": thing.dtype.name, "shape": list(values.shape)}


def from_array(data: np.ndarray[Any, Any], described: dict[str, Any]) -> tf.Tensor:
    """The tensor that `to_array` took apart."""
    dtype = tf.dtypes.as_dtype(described["dtype"])
    return tf.constant(data.view(dtype.as_numpy_dtype).reshape(described["shape"]))

"""TensorFlow's and Keras's tensors and generator states in the forms that a saved state has."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from determinism.frameworks.tensorflow.iterator_state import iterator_state, put_back_iterator

_KEEPERS = ("Layer", "Optimizer", "Metric")
"""Classes of Keras's whose objects keep variables; a model is a layer."""


def generator_states() -> dict[str, Any]:
    """The global seed and where its stream is, the global generator, and Keras's global seed and generator."""
    from tensorflow.python.eager import context

    here = context.context()
    seed = here._seed
    made = _global_generator()
    return {
        "seed": seed,
        "stream": None if seed is None else here._rng.getstate(),
        "global generator": None if made is None else made.state.numpy(),
        "keras": _keras_states(),
    }


def restore_generator_states(states: dict[str, Any]) -> None:
    """Put them back."""
    from tensorflow.python.eager import context

    here = context.context()
    # The kernels of ops that drew keep a stream each; setting a seed drops them.
    here._set_global_seed(states["seed"])
    if states["stream"] is not None:
        here._rng.setstate(states["stream"])
    if states["global generator"] is not None:
        tf.random.get_global_generator().reset(states["global generator"])
    if states["keras"] is not None:
        _restore_keras(states["keras"])


def _global_generator() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    return getattr(stateful_random_ops, "global_generator", None)


def _keras_states() -> dict[str, Any] | None:
    try:
        from keras.src.backend.common import global_state
    except ImportError:
        return None
    made = global_state.get_global_attribute("global_seed_generator")
    return {
        "seed": global_state.get_global_attribute("global_random_seed"),
        "generator": None if made is None else np.asarray(made.state.numpy()),
    }


def _restore_keras(states: dict[str, Any]) -> None:
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    global_state.set_global_attribute("global_random_seed", states["seed"])
    if states["generator"] is None:
        global_state.set_global_attribute("global_seed_generator", None)
    else:
        seed_generator.global_seed_generator().state.assign(states["generator"])


def rank() -> tuple[int, int] | None:
    """Not known: a strategy numbers its replicas, and what started the processes numbers these."""
    return None


def devices() -> dict[str, int]:
    """How many GPUs TensorFlow sees; its generators do not belong to devices."""
    found = len(tf.config.list_physical_devices("GPU"))
    return {"tensorflow GPU": found} if found else {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Kind and state of a generator, of what has variables, or of an iterator of `tf.data`; None if `thing` is none of these.

    Raises:
        StateError: It is an iterator that TensorFlow cannot save.
    """
    if isinstance(thing, tf.random.Generator):
        return f"tf.random.Generator with algorithm {int(thing.algorithm)}", thing.state.numpy()
    if isinstance(thing, tf.data.Iterator):
        return iterator_state(thing)
    variables = _keras_variables(thing)
    if variables is None:
        return None
    # One that is not built yet has fewer, and cannot take the state of one that is.
    return f"keras {type(thing).__name__} with {len(variables)} variables", [_array_of(one.value) for one in variables]


def put_back(thing: Any, state: Any) -> None:
    """Give a generator, what has variables, or an iterator a state.

    Raises:
        StateError: It is an iterator of another data set.
    """
    if isinstance(thing, tf.data.Iterator):
        put_back_iterator(thing, state)
        return
    variables = _keras_variables(thing)
    if variables is None:
        thing.reset(state)
        return
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)


def _keras_variables(thing: Any) -> list[Any] | None:
    """The variables of a model, layer, metric or optimizer of Keras, states of dropout's generators among them."""
    keras = sys.modules.get("keras")
    kinds = tuple(kind for name in _KEEPERS if (kind := getattr(keras, name, None)) is not None)
    if not isinstance(thing, kinds):
        return None
    # The variables of a compiled model's optimizer and metrics belong to these.
    return list(thing.variables)


def _array_of(value: Any) -> Any:
    """A copy of a tensor, as a tensor: NumPy has not all types of numbers."""
    return tf.identity(value)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of a tensor or variable as an array; None if `thing` is none, or one without numbers."""
    if not isinstance(thing, tf.Tensor | tf.Variable) or not (
        thing.dtype.is_floating or thing.dtype.is_integer or thing.dtype.is_bool or thing.dtype.is_complex
    ):
        return None
    array = np.array(thing.numpy())
    if array.dtype.isbuiltin == 1:
        return array, {}
    # NumPy itself has no such numbers, bfloat16 for instance.
    return np.frombuffer(array.tobytes(), dtype=np.uint8), {"dtype": thing.dtype.name, "shape": list(array.shape)}


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> Any:
    """The tensor.

    Args:
        array: What `to_array` gave.
        description: What came with it.
    """
    if "dtype" in description:
        dtype = tf.dtypes.as_dtype(description["dtype"])
        array = np.frombuffer(array.tobytes(), dtype=dtype.as_numpy_dtype).reshape(description["shape"])
    return tf.constant(array)


def gaps() -> list[str]:
    """What ops of a `tf.function` have drawn: they keep their streams to themselves."""
    return [
        "stateful random ops within a tf.function (tf.random.normal and the like) count in their kernels, and TensorFlow gives these "
        "counts to nobody; use tf.random.Generator, stateless ops, or Keras's SeedGenerator, whose states are variables"
    ]

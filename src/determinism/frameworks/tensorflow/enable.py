"""Determinism in TensorFlow outside of recording: settings, seeds, conversion of tensors and generators for saved states, and snapshots of variables
and generators that `determinism.check(fn)` restores.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops, tensor
from tensorflow.python.ops import gen_dataset_ops, resource_variable_ops

from determinism.errors import StateError
from determinism.frameworks.snapshots import Contents
from determinism.frameworks.wrapping import wrap
from determinism.knowledge.settings import Control
from determinism.run_spec import FactorRequest
from determinism.seeds import Streams, capture_numpy, capture_python

# TensorFlow's settings that `determinism.enable` reads and writes.


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must be made before a moment.

    Args:
        moment: "device" or "collectives"; for both it is TensorFlow's first op, by which it has read all settings.
    """
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None


def _read_determinism() -> bool:
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def _write_determinism(value: bool) -> None:
    from tensorflow.python.framework import config

    if value:
        tf.config.experimental.enable_op_determinism()
    else:
        config.disable_op_determinism()


def _threads(kind: str) -> Control:
    def read() -> int:
        return int(getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")())

    def write(value: int) -> None:
        # Raises if TensorFlow has already made its threads, and their number is different.
        if value != read():
            getattr(tf.config.threading, f"set_{kind}_op_parallelism_threads")(value)

    return Control(read, write)


CONTROLS: dict[str, Control] = {
    "tf.config.experimental.enable_op_determinism": Control(_read_determinism, _write_determinism),
    "tf.config.threading.get_intra_op_parallelism_threads": _threads("intra"),
    "tf.config.threading.get_inter_op_parallelism_threads": _threads("inter"),
    "tf.config.experimental.tensor_float_32_execution_enabled": Control(
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
}
"""By the names that the facts use."""


# Fixes the factors of an experiment that TensorFlow controls.

_PARALLEL_STAGES = ("parallel_map_dataset_v2", "parallel_interleave_dataset_v4", "parallel_batch_dataset")
"""The functions that create pipeline stages which work on several elements at a time."""


def start(request: FactorRequest) -> None:
    """Fix the requested factors, right after TensorFlow's import."""
    if request.is_fixed("tensorflow-seed"):
        # As `keras.utils.set_random_seed` does; Keras may be in the middle of its own import.
        random.seed(0)
        np.random.seed(0)
        tf.random.set_seed(0)
    if request.is_fixed("deterministic-ops"):
        tf.config.experimental.enable_op_determinism()
    if request.is_fixed("tensorflow-threads"):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if request.is_fixed("pipeline-parallel") or request.is_fixed("pipeline-order"):
        _order_pipelines(one_by_one=request.is_fixed("pipeline-parallel"))


def _order_pipelines(*, one_by_one: bool) -> None:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kwargs["deterministic"] = "true"
        if one_by_one and "num_parallel_calls" in kwargs:
            kwargs["num_parallel_calls"] = tf.constant(1, tf.int64)
        return original(*args, **kwargs)

    for name in _PARALLEL_STAGES:
        if hasattr(gen_dataset_ops, name):
            wrap(gen_dataset_ops, name, around)


# The position of an iterator of `tf.data`, as TensorFlow's own checkpoints save it, with the content of its shuffle
# buffers.

_NAME = "iterator"


def iterator_state(iterator: Any) -> tuple[str, Any] | None:
    """Kind and position; None if it is not an iterator of `tf.data`.

    Raises:
        StateError: TensorFlow cannot save the position, since an op of the data set has internal state.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return None
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(str(Path(folder) / _NAME))
        except tf.errors.OpError as error:
            raise StateError(
                "state-iterator-unsaveable",
                f"TensorFlow cannot save the position of an iterator of tf.data ({_reason(error)}), so nothing was "
                "captured. An op in the data set has internal state: use stateless random ops, keyed by the sample "
                "number, or augment inside the model, with Keras layers.",
            ) from None
        files = {file.name: np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in sorted(Path(folder).iterdir())}
    return f"tf.data.Iterator of {iterator.element_spec}", files


def put_back_iterator(iterator: Any, files: dict[str, Any]) -> None:
    """Make a new iterator of the same data set continue from a position that `iterator_state` returned.

    Raises:
        StateError: The data set is a different one.
    """
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        for name, content in files.items():
            (Path(folder) / Path(name).name).write_bytes(np.asarray(content).tobytes())
        try:
            tf.train.Checkpoint(iterator=iterator).read(str(Path(folder) / _NAME)).assert_consumed()
        except (tf.errors.OpError, AssertionError) as error:
            raise StateError(
                "state-iterator-unfit",
                f"The position of an iterator of tf.data does not fit the data set here ({_reason(error)}). Create "
                "the iterator from the data set of the saved run, with the same transformations.",
            ) from None


def _reason(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    return " ".join(text.partition("}} ")[2].split() or text.split())[:200]


# Converts TensorFlow's and Keras's tensors and generator states to and from the form that saved states use.


_KEEPERS = ("Layer", "Optimizer", "Metric")
"""Keras classes whose objects keep variables; a model is a layer."""


def generator_states() -> dict[str, Any]:
    """The global seed and the state of its stream, the global generator, and Keras's global seed and generator."""
    from tensorflow.python.eager import context

    here = context.context()
    seed = here._seed
    made = global_generator()
    return {
        "seed": seed,
        "stream": None if seed is None else here._rng.getstate(),
        "global generator": None if made is None else made.state.numpy(),
        "keras": _keras_states(),
    }


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restore what `generator_states` returned."""
    from tensorflow.python.eager import context

    here = context.context()
    # The kernels of ops that drew keep a stream each; setting a seed discards the kernels.
    here._set_global_seed(states["seed"])
    if states["stream"] is not None:
        here._rng.setstate(states["stream"])
    if states["global generator"] is not None:
        tf.random.get_global_generator().reset(states["global generator"])
    if states["keras"] is not None:
        _restore_keras(states["keras"])


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
    """Return None: a strategy numbers its replicas, and the launcher numbers the processes."""
    return None


def devices() -> dict[str, int]:
    """Number of GPUs that TensorFlow sees; its generators do not belong to devices."""
    found = len(tf.config.list_physical_devices("GPU"))
    return {"tensorflow GPU": found} if found else {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Kind and state of a generator, a Keras object with variables, or an iterator of `tf.data`; None if `thing` is none of these.

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
    # An unbuilt object has fewer variables, and cannot take the state of a built one. Tensors, as NumPy lacks some dtypes.
    return f"keras {type(thing).__name__} with {len(variables)} variables", [
        tf.identity(one.value) for one in variables
    ]


def put_back(thing: Any, state: Any) -> None:
    """Restore the state of a generator, a Keras object with variables, or an iterator.

    Raises:
        StateError: It is an iterator of a different data set.
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
    """The variables of a Keras model, layer, metric or optimizer, including the states of dropout's generators."""
    keras = sys.modules.get("keras")
    kinds = tuple(kind for name in _KEEPERS if (kind := getattr(keras, name, None)) is not None)
    if not isinstance(thing, kinds):
        return None
    # Those of a compiled model's optimizer and metrics belong to the optimizer and metrics.
    return list(thing.variables)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of a tensor or variable as an array; None if `thing` is neither, or not numeric."""
    if not isinstance(thing, tf.Tensor | tf.Variable) or not (
        thing.dtype.is_floating or thing.dtype.is_integer or thing.dtype.is_bool or thing.dtype.is_complex
    ):
        return None
    array = np.array(thing.numpy())
    if array.dtype.isbuiltin == 1:
        return array, {}
    # NumPy itself has no such dtype, for instance bfloat16.
    return np.frombuffer(array.tobytes(), dtype=np.uint8), {"dtype": thing.dtype.name, "shape": list(array.shape)}


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> Any:
    """The tensor that `to_array` converted to this array and description."""
    if "dtype" in description:
        dtype = tf.dtypes.as_dtype(description["dtype"])
        array = np.frombuffer(array.tobytes(), dtype=dtype.as_numpy_dtype).reshape(description["shape"])
    return tf.constant(array)


def gaps() -> list[str]:
    """What a saved state lacks: the streams of random ops in a `tf.function`, which cannot be read."""
    return [
        "stateful random ops within a tf.function (tf.random.normal and the like) count in their kernels, and "
        "TensorFlow does not expose these counts; use tf.random.Generator, stateless ops, or Keras's SeedGenerator, "
        "whose states are variables"
    ]


# Seeds TensorFlow's and Keras's generators.

_KERAS_NAMES = ("global_random_seed", "global_seed_generator")


def seed(streams: Streams) -> None:
    """Set TensorFlow's global seed, and Keras's if it is loaded.

    It does not initialise a device, so settings that must precede that can still be made. The global `tf.random.Generator`
    is reset if the program has made one.
    """
    # Within a tf.function TensorFlow keeps 31 bits of it (python/framework/random_seed.py); outside of one it uses all.
    tf.random.set_seed(streams.integer("tensorflow", bits=63))
    generator = global_generator()
    if generator is not None:
        generator.reset(_generator_state(streams, "global"))
    seed_keras(streams)


def seed_keras(streams: Streams) -> None:
    """Set the seed that Keras's layers and initializers start from, if Keras is loaded."""
    keras = sys.modules.get("keras")
    set_random_seed = getattr(getattr(keras, "utils", None), "set_random_seed", None)
    if set_random_seed is None:
        return
    # It also seeds Python, NumPy and TensorFlow with the same number; their states must stay as they are.
    put_back = [capture_python(), capture_numpy(), capture_tensorflow()]
    set_random_seed(streams.integer("keras", bits=32))
    for action in put_back:
        action()


def generator(streams: Streams, name: str) -> tf.random.Generator:
    """A `tf.random.Generator` with a stream of its own.

    Args:
        streams: The seed streams that it draws from.
        name: Distinguishes it from others.
    """
    return tf.random.Generator.from_state(_generator_state(streams, name), alg="philox")


def _generator_state(streams: Streams, name: str) -> list[int]:
    # Philox: a 128-bit counter, which begins at 0, and a 64-bit key.
    key = streams.integer("tensorflow", "generator", name, bits=64)
    return [0, 0, key - (1 << 64) if key >> 63 else key]


def global_generator() -> Any:
    """The global `tf.random.Generator`; None if the program has made none."""
    from tensorflow.python.ops import stateful_random_ops

    return getattr(stateful_random_ops, "global_generator", None)


def capture() -> Callable[[], None]:
    """Save the states of TensorFlow's and Keras's global generators; return a function that restores them."""
    put_back = [capture_tensorflow(), _capture_keras()]

    def restore() -> None:
        for action in put_back:
            action()

    return restore


def capture_tensorflow() -> Callable[[], None]:
    """Save TensorFlow's global seed, the state of its stream, and the global generator; return a function that restores them."""
    from tensorflow.python.eager import context

    here = context.context()
    seed, state = here._seed, here._rng.getstate() if here._seed is not None else None
    generator = global_generator()
    values = None if generator is None else generator.state.numpy()

    def restore() -> None:
        # The kernels of ops that drew keep a stream each; setting a seed discards the kernels.
        here._set_global_seed(seed)
        if state is not None:
            here._rng.setstate(state)
        if values is not None:
            generator.reset(values)

    return restore


def keras_seeds() -> tuple[int | None, Any]:
    """Keras's global seed, and the generator made from it; None for either if it does not exist."""
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
    """A function that seeds a TensorFlow generator registered under a name; None if the thing is not one."""
    if not isinstance(thing, tf.random.Generator):
        return None
    return lambda streams: thing.reset(_generator_state(streams, name))


_STATELESS: tuple[type[Any], ...] = (tensor.Tensor, tf.dtypes.DType, tf.TensorShape, ops.Graph, tf.TypeSpec)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep gradient tapes from seeing that states are copied and restored."""
    with record.stop_recording():
        yield


_KERAS_STATE = "keras.src.backend.common.global_state"
_NAME_COUNTERS = "object_name_uids"
"""Keras numbers the layers and optimizers of a class: the second `Dense` is named `dense_1`, and so are its variables."""


def capture_generators() -> Callable[[], None]:
    """Save the states of the global generators and Keras's name counters; return a function that restores them."""
    put_back, counters = capture(), dict(_name_counters() or {})

    def restore() -> None:
        put_back()
        if _name_counters() is not None:
            sys.modules[_KERAS_STATE].set_global_attribute(_NAME_COUNTERS, defaultdict(int, counters))

    return restore


def _name_counters() -> dict[str, int] | None:
    """How many names Keras gave, by prefix; None before it has named anything."""
    state: Any = sys.modules.get(_KERAS_STATE)
    counters: dict[str, int] | None = None if state is None else state.get_global_attribute(_NAME_COUNTERS)
    return counters


def restore_generators(states: Callable[[], None] | None) -> None:
    """Restore what `capture_generators` saved; generators that did not exist then stay as they are."""
    if states is not None:
        states()


def contents_of(thing: Any) -> list[Contents] | None:
    """What a variable or a function holds; None if `thing` is not one of TensorFlow's own objects."""
    if isinstance(thing, resource_variable_ops.BaseResourceVariable):
        # A copy: the tensor that was read shares the memory of the variable.
        value = tf.identity(thing.read_value()).numpy()
        return [Contents(lambda: thing.assign(value), is_whole=True)]
    if isinstance(thing, tf.types.experimental.PolymorphicFunction):
        # Traces do not change what a function computes.
        return [Contents(children=[("python_function", thing.python_function)], is_whole=True)]
    return [] if isinstance(thing, _STATELESS) else None

"""TensorFlow's settings that `determinism.enable` reads and writes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from determinism.settings.control import Control


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must come before a moment.

    Args:
        moment: "device" or "collectives": with its first op TensorFlow has read all it reads.
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
        # Raises once TensorFlow has made its threads, unless they are as many.
        if value != read():
            getattr(tf.config.threading, f"set_{kind}_op_parallelism_threads")(value)

    return Control(read, write)


def _write_tf32(value: Any) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(value)


CONTROLS: dict[str, Control] = {
    "tf.config.experimental.enable_op_determinism": Control(_read_determinism, _write_determinism),
    "tf.config.threading.get_intra_op_parallelism_threads": _threads("intra"),
    "tf.config.threading.get_inter_op_parallelism_threads": _threads("inter"),
    "tf.config.experimental.tensor_float_32_execution_enabled": Control(
        lambda: tf.config.experimental.tensor_float_32_execution_enabled(), _write_tf32
    ),
}
"""By the names that the facts have."""

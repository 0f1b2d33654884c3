"""How far an iterator of `tf.data` has come, as TensorFlow's own checkpoints know it, with what its shuffle buffers hold."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from determinism.errors import StateError

_NAME = "iterator"


def iterator_state(iterator: Any) -> tuple[str, Any] | None:
    """Kind and position; None if it is no iterator of `tf.data`.

    Raises:
        StateError: TensorFlow cannot tell the position, since an op of the data set keeps a state of its own.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return None
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(str(Path(folder) / _NAME))
        except tf.errors.OpError as error:
            raise StateError(
                "state-iterator-unsaveable",
                f"TensorFlow cannot save the position of an iterator of tf.data ({_reason(error)}), so nothing was captured. An op in the data "
                "set keeps a state of its own: use stateless random ops, keyed by the number of the sample, or prepare the samples in the "
                "model, by layers of Keras.",
            ) from None
        files = {file.name: np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in sorted(Path(folder).iterdir())}
    return f"tf.data.Iterator of {iterator.element_spec}", files


def put_back_iterator(iterator: Any, files: dict[str, Any]) -> None:
    """Let an iterator of the same data set go on from a position.

    Args:
        iterator: A new one.
        files: What `iterator_state` gave.

    Raises:
        StateError: The data set is another one.
    """
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        for name, content in files.items():
            (Path(folder) / Path(name).name).write_bytes(np.asarray(content).tobytes())
        try:
            tf.train.Checkpoint(iterator=iterator).read(str(Path(folder) / _NAME)).assert_consumed()
        except (tf.errors.OpError, AssertionError) as error:
            raise StateError(
                "state-iterator-unfit",
                f"The position of an iterator of tf.data does not fit the data set here ({_reason(error)}). Make the iterator of the same data set, "
                "with the same transformations, as the run that was saved.",
            ) from None


def _reason(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    return " ".join(text.partition("}} ")[2].split() or text.split())[:200]

"""Says by audit events which files TensorFlow reads and writes: it opens them in C++, where Python does not see it.

What a check makes of these events is in `launch/reading.py`; without a check nobody listens, and they cost next to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.lib.io import file_io, tf_record
from tensorflow.python.training import py_checkpoint_reader

from determinism.frameworks.wrapping import Undo, wrap
from determinism.launch.reading import READ_EVENT, WRITE_EVENT

_INDEX = ".index"
"""Ending of the file of a checkpoint that is read first, and without which there is no checkpoint."""


def install() -> list[Undo]:
    """Announce from now on what goes through TensorFlow's own files and checkpoints; returns what ends that."""
    wrapped: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (file_io.FileIO, "_preread_check", _read),
        (file_io.FileIO, "_prewrite_check", _written),
        (file_io, "rename_v2", _renamed),
        (py_checkpoint_reader, "NewCheckpointReader", _restored),
        (functional_saver.MultiDeviceSaver, "save", _saved),
        (tf_record.TFRecordWriter, "__init__", _records_written),
    )
    # Some of these are TensorFlow's own affair, so that another version may lack them; a check then knows less of files.
    return [wrap(owner, name, around) for owner, name, around in wrapped if hasattr(owner, name)]


def announce_read(names: Any) -> None:
    """Say that an op reads files.

    Args:
        names: The tensor of strings that names them.
    """
    for name in _texts(names):
        _announce(READ_EVENT, name)


def _announce(event: str, path: Any) -> None:
    path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    # What has a scheme lies elsewhere.
    if path and "://" not in path:
        sys.audit(event, path)


def _texts(value: Any) -> Iterator[str | bytes]:
    """The strings of an argument: itself, or what a tensor holds that is no part of a graph."""
    if isinstance(value, (str, bytes)):
        yield value
    elif hasattr(value, "_numpy_internal"):
        held = value._numpy_internal()
        yield from (one for one in getattr(held, "flat", [held]) if isinstance(one, (str, bytes)))


def _read(original: Callable[..., Any], file: Any) -> Any:
    if getattr(file, "_read_buf", None) is None:
        _announce(READ_EVENT, file.name)
    return original(file)


def _written(original: Callable[..., Any], file: Any) -> Any:
    if getattr(file, "_writable_file", None) is None:
        _announce(WRITE_EVENT, file.name)
    return original(file)


def _renamed(original: Callable[..., Any], src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
    _announce(WRITE_EVENT, dst)
    return original(src, dst, *args, **kwargs)


def _restored(original: Callable[..., Any], filepattern: Any) -> Any:
    for prefix in _texts(filepattern):
        _announce(READ_EVENT, f"{os.fsdecode(prefix)}{_INDEX}")
    return original(filepattern)


def _saved(original: Callable[..., Any], saver: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
    for prefix in _texts(file_prefix):
        _announce(WRITE_EVENT, f"{os.fsdecode(prefix)}{_INDEX}")
    return original(saver, file_prefix, *args, **kwargs)


def _records_written(original: Callable[..., Any], writer: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    _announce(WRITE_EVENT, path)
    return original(writer, path, *args, **kwargs)

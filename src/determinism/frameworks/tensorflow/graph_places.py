"""Where an op of a graph belongs: the user's line that made it, the layer, and what the program was doing."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from determinism.types import Phase

_OPTIMIZER_FILES = (
    os.path.join("keras", "src", "optimizers") + os.sep,
    os.path.join("tensorflow", "python", "training") + os.sep,
)
_BACKWARD_NAMES = re.compile(r"(^|/)(gradient_tape|gradients)(_\d+)?/")
_OF_GRADIENTS = re.compile(r"(gradient_tape|gradients)(_\d+)?/")
_TAPE_FILE = os.path.join("tensorflow", "python", "eager", "backprop.py")


class Place(NamedTuple):
    """Where an op belongs."""

    phase: Phase
    module: str
    """Scopes of names around the op: in Keras the path of the layer."""
    frames: tuple[tuple[str, int, str], ...]
    """File, line and function, innermost first."""
    forward_frames: tuple[tuple[str, int, str], ...] = ()
    """Of an op of a gradient: those of the op that it is the gradient of, where that is in the same graph."""


def place_of(op: Any) -> Place:
    """Where an op of a graph was made.

    Args:
        op: Of a `FuncGraph`; one that was loaded has no frames.
    """
    frames = _frames_of(op)
    name = op.name
    forward: tuple[tuple[str, int, str], ...] = ()
    if is_of_gradient(name) or any(file.endswith(_TAPE_FILE) for file, _, _ in frames):
        phase = Phase.BACKWARD
        forward = _frames_of(_forward_op(op))
    elif any(part in file for file, _, _ in frames for part in _OPTIMIZER_FILES):
        phase = Phase.OPTIMIZER
    else:
        phase = Phase.FORWARD
    return Place(phase, layer_path(name), frames, forward)


def is_of_gradient(name: str) -> bool:
    """Whether an op of this name computes gradients."""
    return _BACKWARD_NAMES.search(name) is not None


def _frames_of(op: Any) -> tuple[tuple[str, int, str], ...]:
    try:
        return tuple((f.filename, f.lineno or 0, f.name) for f in reversed(list(op.traceback)))
    except (AttributeError, ValueError, TypeError):
        return ()


def _forward_op(op: Any) -> Any:
    """The op that an op of a gradient belongs to: TensorFlow puts the gradient into a scope with its name."""
    path = _OF_GRADIENTS.sub("", op.name)
    while "/" in path:
        path = path.rpartition("/")[0]
        try:
            return op.graph.get_operation_by_name(path)
        except (KeyError, ValueError):
            continue
    return None


def layer_path(name: str) -> str:
    """The path of the layer in the name of an op: `gradient_tape/model/dense/MatMul` belongs to `model/dense`."""
    path, found = _OF_GRADIENTS.subn("", name)
    path = path.rpartition("/")[0]
    before, _, last = path.rpartition("/")
    # Behind the layer stands the forward op.
    return before if found and last[:1].isupper() else path

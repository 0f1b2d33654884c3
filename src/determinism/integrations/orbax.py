"""`determinism.state` as an item of Orbax checkpoints, next to the arrays that Orbax itself saves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from determinism.state import State, capture, load, restore


class StateHandler(ocp.CheckpointHandler):  # type: ignore[misc]  # orbax has no annotations that mypy sees
    """Writes a state into the folder of its item, one file for each process, and reads it from there.

    A checkpoint manager is given `StateSave` and `StateRestore`, from which it finds this handler.
    """

    def save(self, directory: Any, args: StateSave) -> None:
        """Write the state that was captured when the arguments were made."""
        args.state.save(_file(directory))

    def restore(self, directory: Any, args: StateRestore | None = None) -> State:
        """Put the state back, and return it: plain values are read from it.

        Raises:
            StateError: The state does not fit here, or is damaged; nothing was put back.
        """
        state = load(_file(directory))
        if args is not None:
            restore(state, allow=args.allow, **args.parts)
        return state


def _file(directory: Any) -> Path:
    return Path(str(directory)) / f"process-{jax.process_index()}.state"


class StateSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """What is saved of the run in addition to the arrays; its state is captured when this object is created.

    Example:
        manager.save(
            step,
            args=ocp.args.Composite(training=ocp.args.StandardSave(training), run=StateSave(step=step, loader=loader)),
        )
    """

    def __init__(self, *, epoch: int | None = None, step: int | None = None, **parts: Any) -> None:
        """Capture the state.

        Args:
            epoch: As for `determinism.state.capture`.
            step: As for `determinism.state.capture`.
            **parts: As for `determinism.state.capture`: loaders, generators, keys, plain values.

        Raises:
            StateError: A part cannot be saved.
        """
        self.state = capture(epoch=epoch, step=step, **parts)


@dataclass
class StateRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The parts whose state is restored.

    Example:
        template = {"training": ocp.args.StandardRestore(training), "run": StateRestore({"loader": loader})}
        restored = manager.restore(step, args=ocp.args.Composite(**template))
        training, key = restored["training"], restored["run"]["key"]
    """

    parts: dict[str, Any] = field(default_factory=dict)
    """By the names that they were saved with; plain values are read from the state instead."""
    allow: Collection[str] = ()
    """As for `determinism.state.restore`."""


ocp.args.register_with_handler(StateHandler, for_save=True)(StateSave)
ocp.args.register_with_handler(StateHandler, for_restore=True)(StateRestore)

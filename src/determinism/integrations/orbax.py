"""`determinism.state` as an item of Orbax checkpoints, beside the arrays that Orbax saves itself."""

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

    `StateSave` and `StateRestore` are what a checkpoint manager is given; it finds this by them.
    """

    def save(self, directory: Any, args: StateSave) -> None:
        """Write the state that was captured when the arguments were made."""
        args.state.save(_file(directory))

    def restore(self, directory: Any, args: StateRestore | None = None) -> State:
        """Put the state back, and give it: plain values are read from it.

        Raises:
            StateError: It does not fit here, or is damaged; nothing was put back.
        """
        state = load(_file(directory))
        if args is not None:
            restore(state, allow=args.allow, **args.parts)
        return state


def _file(directory: Any) -> Path:
    return Path(str(directory)) / f"process-{jax.process_index()}.state"


class StateSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Says what of the run is saved beside the arrays; its state is captured when this is made.

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
    """Says what takes its state back.

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

"""`determinism.state`: everything that a run needs to continue from the middle as if it had never stopped.

state = determinism.state.capture(model=model, optimizer=optimizer, loader=loader, epoch=epoch, step=step)
state.save("last.state")
...
state = determinism.state.load("last.state")
determinism.state.restore(state, model=model, optimizer=optimizer, loader=loader)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from determinism.state.captured import State, from_bytes, from_dict, from_tree, load
from determinism.state.capturing import Checkpointed, capture, restore
from determinism.state.loader import ResumableLoader, resumable

_GUESSES = {
    "checkpoint": "capture(...).save(path)",
    "dump": "capture(...).save(path)",
    "get": "capture(...)",
    "get_state": "capture(...)",
    "load_state": "load(path)",
    "put_back": "restore(state, ...)",
    "restore_state": "restore(state, ...)",
    "resume": "restore(state, ...)",
    "save": "capture(...).save(path)",
    "save_state": "capture(...).save(path)",
    "set": "restore(state, ...)",
    "set_state": "restore(state, ...)",
    "snapshot": "capture(...)",
}
"""Names that users are likely to try, and the right calls."""


if not TYPE_CHECKING:
    # A type checker would conclude that every name exists.
    def __getattr__(name: str) -> object:
        meant = _GUESSES.get(name)
        if meant is None and not name.startswith("_"):
            from difflib import get_close_matches

            meant = next(iter(get_close_matches(name, __all__, n=1)), None)
        hint = "" if meant is None else f". Did you mean determinism.state.{meant}?"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


__all__ = [
    "Checkpointed",
    "ResumableLoader",
    "State",
    "capture",
    "from_bytes",
    "from_dict",
    "from_tree",
    "load",
    "restore",
    "resumable",
]

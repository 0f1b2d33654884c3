"""`determinism.state`: everything that a run needs to go on from the middle as if it had never stopped.

state = determinism.state.capture(model=model, optimizer=optimizer, loader=loader, epoch=epoch, step=step)
state.save("last.state")
...
state = determinism.state.load("last.state")
determinism.state.restore(state, model=model, optimizer=optimizer, loader=loader)
"""

from __future__ import annotations

from determinism.state.captured import State, from_bytes, from_dict, from_tree, load
from determinism.state.capturing import Checkpointed, capture, restore
from determinism.state.loader import ResumableLoader, resumable

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

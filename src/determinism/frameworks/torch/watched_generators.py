"""Notes which states a program puts its global generators into before its first step ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from determinism import rng
from determinism.frameworks.torch.generators import state_digest
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.files import write_json
from determinism.trace.schema import PUT_BACK_FILE

_MOST_NOTED = 1000


class WatchedGenerators:
    """Watches the functions that take a state, and writes down what they were given."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the process."""
        self._folder = folder
        self._noted: dict[str, dict[str, None]] = {"torch": {}, "python": {}, "numpy": {}}
        self._is_on = True
        setters = [
            (random, "setstate", "python"),
            (np.random, "set_state", "numpy"),
            (torch, "set_rng_state", "torch"),
            (torch.random, "set_rng_state", "torch"),
        ]
        self._undo = [wrap(module, name, self._noting(generator)) for module, name, generator in setters]

    def _noting(self, generator: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            noted = self._noted[generator]
            if self._is_on and len(noted) < _MOST_NOTED:
                noted[_state(generator).hex()] = None
            return result

        return around

    def step_ended(self) -> None:
        """What is put back later is no matter of resuming."""
        self._is_on = False

    def close(self) -> None:
        """Write it into the trace.

        Raises:
            OSError: It cannot be written.
        """
        write_json(self._folder / PUT_BACK_FILE, {name: list(noted) for name, noted in self._noted.items()})

    def undo(self) -> list[Undo]:
        """What takes the wrappers off."""
        return self._undo


def _state(generator: str) -> bytes:
    return state_digest(torch.default_generator) if generator == "torch" else rng.state_digests()[generator]

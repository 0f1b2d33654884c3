"""Seeds that Keras draws from Python's generator where the program gives none: of layers that drop out, of initial weights."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from determinism.digest import digest_text
from determinism.frameworks.made_values import Value
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import
from determinism.types import Role

if TYPE_CHECKING:
    from determinism.frameworks.tensorflow.recorder import Recorder

OP = "keras::make_default_seed"
_DRAWING = "keras.src.random.seed_generator"
_USING = "keras.src.backend.tensorflow.random"
"""Where the function is imported to by name, before or after it was wrapped."""
_MOST_SEEDS = 10_000


class KerasSeeds:
    """The seeds that were drawn, and the records of these draws."""

    def __init__(self, recorder: Recorder) -> None:
        """Take what makes the records."""
        self._recorder = recorder
        self._drawn: dict[int, Value] = {}

    def install(self) -> list[Undo]:
        """Record draws from now on; returns what ends that."""
        undo: list[Undo] = []

        def hook(module: Any) -> None:
            undo.append(wrap(module, "make_default_seed", self._draw))
            using = sys.modules.get(_USING)
            if using is not None and hasattr(using, "make_default_seed"):
                undo.append(wrap(using, "make_default_seed", self._draw))

        def take_off() -> None:
            for one in undo:
                one()

        after_import(_DRAWING, hook, self._recorder.failed_to_hook)
        return [take_off]

    def _draw(self, original: Callable[[], int]) -> int:
        state = digest_text(repr(random.getstate()))
        seed = original()
        if self._recorder.is_own():
            self._recorder.quietly(self._record, seed, state)
        return seed

    def _record(self, seed: int, state: bytes) -> None:
        made = (self._recorder.stream.value_layout, digest_text(repr(seed)))
        number = self._recorder.emit(Role.OP, OP, [], [made], drawn=[state])
        if len(self._drawn) < _MOST_SEEDS:
            self._drawn[seed] = Value(number, 0, *made)

    def behind(self, tensor: Any) -> Value | None:
        """The draw that a tensor holds the seed of: Keras makes a pair of whole numbers of it; None if it holds none."""
        if not self._drawn or not tensor.dtype.is_integer or tensor.shape.rank != 1 or tensor.shape[0] != 2:
            return None
        return self._drawn.get(int(tensor._numpy_internal()[0]))

"""The edges of a thread other than the main one: what another thread wrote is known by its digest only."""

from __future__ import annotations

from collections.abc import Callable

import torch

from determinism.frameworks.torch.edges import READ, Edges, Looked
from determinism.frameworks.torch.layouts import Layout
from determinism.frameworks.torch.storages import EXTERNAL, StorageState, StorageTable
from determinism.frameworks.torch.stream import Stream
from determinism.frameworks.torch.tensor_bytes import is_strided


class ThreadEdges(Edges):
    """Knows which record of its thread wrote which memory.

    Which thread wrote last may vary from run to run. So an edge stays within a thread: memory that another one may
    have written since is digested when it is read, here and in the main thread.
    """

    def __init__(
        self, stream: Stream, main: StorageTable, leaf_read: Callable[[torch.Tensor], None], *, paranoid: bool
    ) -> None:
        """Make an empty one.

        Args:
            stream: That of the threads.
            main: What the main thread knows of storages.
            leaf_read: Called when a leaf that requires a gradient is read.
            paranoid: Digest every input.
        """
        super().__init__(stream, leaf_read, paranoid=paranoid)
        self._main = main
        self._always = paranoid

    def look_at(self, tensor: torch.Tensor, looked: Looked, access: int = READ) -> Layout | None:
        """Add the edge from a tensor to the record that wrote its memory; gives how it looks at that memory."""
        if is_strided(tensor):
            state = self.storages.state(tensor)
            known = self._main.known(tensor)
            if state.writer is not self or (known is not None and known.record != EXTERNAL):
                state.record = EXTERNAL
            self._paranoid = self._always or state.writer is not self
        return super().look_at(tensor, looked, access)

    def wrote(self, states: list[StorageState | None], record: int) -> None:
        """From now on these storages hold what a record wrote as its outputs; the main thread must look anew."""
        super().wrote(states, record)
        for state in states:
            if state is not None:
                state.writer = self
                self._main.written_elsewhere(state.key)

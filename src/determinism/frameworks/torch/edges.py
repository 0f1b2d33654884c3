"""What goes into an op and what it leaves behind: edges to the records that wrote the memory, and digests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.layouts import LayoutTable
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.storages import EXTERNAL, StorageState, StorageTable
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.types import NO_DIGEST, Access

_READ = int(Access.READ)
_CARRY = int(Access.CARRY)
_STRIDED = torch.strided
_Tensor = torch.Tensor


class Looked:
    """The inputs of one record, as the writer takes them."""

    __slots__ = ("digests", "edges")

    def __init__(self) -> None:
        self.edges: list[int] = []
        """Flat fours: record, output, access, layout."""
        self.digests: list[tuple[int, bytes]] = []
        """Position among the inputs, and what that input held."""


class Edges:
    """Knows which record wrote which memory."""

    def __init__(self, layouts: LayoutTable, leaf_read: Callable[[torch.Tensor], None], *, paranoid: bool) -> None:
        """Make an empty one.

        Args:
            layouts: Numbers layouts.
            leaf_read: Called when a leaf that requires a gradient is read.
            paranoid: Digest every input, also those whose producer was recorded.
        """
        self.storages = StorageTable()
        self._layouts = layouts
        self._leaf_read = leaf_read
        self._paranoid = paranoid

    def look_at_arguments(self, traits: OpTraits, args: Any, kwargs: Any) -> Looked:
        """Every tensor among the arguments of an op that is about to run."""
        looked = Looked()
        written = traits.written
        if not written and not kwargs:
            for value in args:
                if isinstance(value, _Tensor):
                    self.look_at(value, looked)
                elif type(value) is list or type(value) is tuple:
                    self._look_at_list(value, looked)
            return looked
        for position, value in enumerate(args):
            if written and position in written:
                self._look_at_target(traits, value, args, looked)
            elif isinstance(value, _Tensor):
                self.look_at(value, looked)
            elif type(value) is list or type(value) is tuple:
                self._look_at_list(value, looked)
        if kwargs:
            for name, value in kwargs.items():
                if written and name in written:
                    self._look_at_target(traits, value, args, looked)
                elif isinstance(value, _Tensor):
                    self.look_at(value, looked)
                elif type(value) is list or type(value) is tuple:
                    self._look_at_list(value, looked)
        return looked

    def _look_at_list(self, values: Any, looked: Looked) -> None:
        for value in values:
            if isinstance(value, _Tensor):
                self.look_at(value, looked)

    def _look_at_target(self, traits: OpTraits, value: Any, args: Any, looked: Looked) -> None:
        reads = traits.reads_written
        if traits.accumulate_at is not None and len(args) > traits.accumulate_at:
            reads = bool(args[traits.accumulate_at])
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, _Tensor):
                continue
            if reads:
                self.look_at(tensor, looked)
            if (traits.keeps_unwritten and not reads) or tensor.nbytes != self.storages.state(tensor).size:
                self.look_at(tensor, looked, _CARRY)

    def look_at(self, tensor: torch.Tensor, looked: Looked, access: int = _READ) -> None:
        """Add the edge from a tensor to the record that wrote its memory."""
        if tensor.layout is not _STRIDED or tensor.is_nested:
            looked.digests.append((len(looked.edges) // 4, digest_tensor(tensor)))
            looked.edges += (EXTERNAL, 0, access, self._layouts.number(tensor, 0))
            return
        state = self.storages.state(tensor)
        record = state.record
        layout = self._layouts.number(tensor, state.size)
        if (record == EXTERNAL or state.is_foreign or self._paranoid) and access == _READ:
            digest = digest_tensor(tensor)
            looked.digests.append((len(looked.edges) // 4, digest))
            if state.lifted is not None and state.lifted[0] == layout and state.lifted[1] != digest:
                # The owner filled its buffer anew: what is read now never came through the op that took it over.
                record = EXTERNAL
        looked.edges += (record, state.output, access, layout)
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            self._leaf_read(tensor)

    def look_at_value(self, tensor: torch.Tensor, looked: Looked) -> None:
        """Add a tensor as an input that is known by its digest only."""
        looked.digests.append((len(looked.edges) // 4, digest_tensor(tensor)))
        looked.edges += (EXTERNAL, 0, _READ, self._layouts.number(tensor, 0))

    def outputs(
        self, traits: OpTraits, tensors: list[torch.Tensor]
    ) -> tuple[list[tuple[int, bytes]], list[StorageState | None]]:
        """Layout and digest of what an op wrote, and the states of the storages that it lies in."""
        made: list[tuple[int, bytes]] = []
        states: list[StorageState | None] = []
        number = self._layouts.number
        for position, tensor in enumerate(tensors):
            if traits.is_uninitialized or traits.is_collective or position in traits.workspaces:
                digest = NO_DIGEST
            else:
                digest = digest_tensor(tensor)
            if tensor.layout is _STRIDED and not tensor.is_nested:
                state = self.storages.state(tensor)
                states.append(state)
                made.append((number(tensor, state.size), digest))
            else:
                states.append(None)
                made.append((number(tensor, 0), digest))
        return made, states

    def wrote(self, states: list[StorageState | None], record: int) -> None:
        """From now on these storages hold what a record wrote as its outputs."""
        for position, state in enumerate(states):
            if state is not None:
                state.record = record
                state.output = position
                state.lifted = None

    def in_flight(self, states: list[StorageState | None]) -> None:
        """Another process may still be writing these storages: what they hold is digested when it is read."""
        for state in states:
            if state is not None:
                state.record = EXTERNAL
                state.is_foreign = True

    def lifted(self, states: list[StorageState | None], made: list[tuple[int, bytes]]) -> None:
        """A tensor over memory of others was taken over; remember what it held."""
        if states and states[0] is not None and states[0].is_foreign:
            states[0].lifted = made[0]

    def remember(self, tensors: list[torch.Tensor], outputs: list[tuple[int, bytes]]) -> None:
        """Keep what a write left, so that a later look can tell whether somebody else changed it."""
        for tensor, (_, digest) in zip(tensors, outputs, strict=True):
            if tensor.layout is _STRIDED and not tensor.is_nested:
                state = self.storages.state(tensor)
                state.digest = digest
                state.view = (tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def written_tensors(traits: OpTraits, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """The tensors that an op wrote, then those that it made, each once."""
    written = traits.written
    if isinstance(result, _Tensor):
        if not written and not traits.hidden_written:
            return [result]
        if traits.returns_target:
            return [args[0]]
    targets = [kwargs.get(at) if isinstance(at, str) else args[at] for at in written
               if isinstance(at, str) or at < len(args)]  # fmt: skip
    if traits.hidden_written and len(args) > traits.hidden_flag and args[traits.hidden_flag]:
        targets += [args[at] for at in traits.hidden_written]
    found: dict[int, torch.Tensor] = {}
    _collect((*targets, result), found)
    return list(found.values())


def _collect(values: Any, found: dict[int, torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, _Tensor):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)

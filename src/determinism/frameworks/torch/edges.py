"""What goes into an op and what it leaves behind: edges to the records that wrote the memory, and digests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.digest import digest_bytes
from determinism.frameworks.torch.collectives import is_root
from determinism.frameworks.torch.device_digests.record_digests import Digest
from determinism.frameworks.torch.layouts import Layout
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.storages import EXTERNAL, StorageState
from determinism.frameworks.torch.stream import Stream
from determinism.frameworks.torch.tensor_bytes import is_strided
from determinism.trace.waiting_rows import settled
from determinism.types import NO_DIGEST, Access

READ = int(Access.READ)
_CARRY = int(Access.CARRY)
_data_pointer = torch._C.TensorBase.data_ptr
_Tensor = torch.Tensor


class Looked:
    """The inputs of one record, as the writer takes them."""

    __slots__ = ("digests", "edges")

    def __init__(self) -> None:
        self.edges: list[int] = []
        """Flat fours: record, output, access, layout."""
        self.digests: tuple[Any, ...] = ()
        """Flat twos: position among the inputs, and the digest of what that input held."""

    def extend(self, other: Looked) -> None:
        """Add the inputs of another record."""
        inputs = len(self.edges) // 4
        self.edges += other.edges
        for position, digest in zip(other.digests[::2], other.digests[1::2], strict=True):
            self.digests += (inputs + position, digest)

    def with_outputs(self, record: int, outputs: list[Any]) -> Looked:
        """The inputs of a record and what it made of them, as the inputs of another record that reads both."""
        both = Looked()
        both.extend(self)
        for position, layout in enumerate(outputs[::2]):
            both.edges += (record, position, READ, layout)
        return both


class Edges:
    """Knows which record wrote which memory."""

    def __init__(self, stream: Stream, leaf_read: Callable[[torch.Tensor], None], *, paranoid: bool) -> None:
        """Make an empty one.

        Args:
            stream: Where the records are that wrote the memory.
            leaf_read: Called when a leaf that requires a gradient is read.
            paranoid: Digest every input, also those whose producer was recorded.
        """
        self.storages = stream.storages
        self._look = stream.storages.look
        self._layouts = stream.layouts
        self._digests = stream.digests
        self._handles = stream.digests.handles
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
            elif type(value) is list:
                self._look_at_list(value, looked)

    def _look_at_target(self, traits: OpTraits, value: Any, args: Any, looked: Looked) -> None:
        reads = traits.reads_written
        if traits.accumulate_at is not None and len(args) > traits.accumulate_at:
            reads = bool(args[traits.accumulate_at])
        elif traits.root_at is not None:
            reads = is_root(args, traits.root_at)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, _Tensor):
                continue
            layout = self.look_at(tensor, looked) if reads else self._layout(tensor)
            if (traits.keeps_unwritten and not reads) or (layout is not None and not layout.fills_storage):
                self.look_at(tensor, looked, _CARRY)

    def look_at(self, tensor: torch.Tensor, looked: Looked, access: int = READ) -> Layout | None:
        """Add the edge from a tensor to the record that wrote its memory; gives how it looks at that memory."""
        try:
            state, layout = self._look(tensor)
        except RuntimeError:
            if is_strided(tensor):
                raise
            self.look_at_value(tensor, looked, access)
            return None
        record = state.record
        if (record == EXTERNAL or state.is_foreign or self._paranoid) and access == READ:
            digest = _digest(tensor, layout)
            looked.digests += (len(looked.edges) // 4, digest)
            if state.lifted is not None and state.lifted[0] == layout.number and _differ(state.lifted[1], digest):
                # The owner filled its buffer anew: what is read now never came through the op that took it over.
                record = EXTERNAL
        looked.edges += (record, state.output, access, layout.number)
        if tensor.requires_grad and torch.is_grad_enabled() and tensor.is_leaf:
            self._leaf_read(tensor)
        return layout

    def _layout(self, tensor: torch.Tensor) -> Layout | None:
        return self._look(tensor)[1] if is_strided(tensor) else None

    def look_at_value(self, tensor: torch.Tensor, looked: Looked, access: int = READ) -> None:
        """Add a tensor as an input that is known by its digest only."""
        looked.digests += (len(looked.edges) // 4, self._digests.of(tensor))
        looked.edges += (EXTERNAL, 0, access, self._layouts.number_without_storage(tensor))

    def outputs(
        self, traits: OpTraits, tensors: list[torch.Tensor]
    ) -> tuple[list[int | Digest], list[StorageState | None]]:
        """Flat twos of layout and digest of what an op wrote, and the states of the storages that it lies in."""
        made: list[int | Digest] = []
        states: list[StorageState | None] = []
        has_no_values = traits.is_uninitialized or traits.is_collective
        if len(tensors) > 1 and not has_no_values and self._handles(tensors[0]):
            return self._outputs_together(traits, tensors)
        for position, tensor in enumerate(tensors):
            is_digested = not has_no_values and position not in traits.workspaces
            try:
                state, layout = self._look(tensor)
            except RuntimeError:
                if is_strided(tensor):
                    raise
                states.append(None)
                digest = self._digests.of(tensor) if is_digested else NO_DIGEST
                made += (self._layouts.number_without_storage(tensor), digest)
                continue
            states.append(state)
            made += (layout.number, _digest(tensor, layout) if is_digested else NO_DIGEST)
        return made, states

    def _outputs_together(
        self, traits: OpTraits, tensors: list[torch.Tensor]
    ) -> tuple[list[int | Digest], list[StorageState | None]]:
        """See `outputs`; on a device, one launch digests them all."""
        looked = [self._look(tensor) if is_strided(tensor) else None for tensor in tensors]
        digested = [position for position in range(len(tensors)) if position not in traits.workspaces]
        digests = dict(zip(digested, self._digests.of_each([tensors[at] for at in digested]), strict=True))
        made: list[int | Digest] = []
        for position, (tensor, one) in enumerate(zip(tensors, looked, strict=True)):
            layout = self._layouts.number_without_storage(tensor) if one is None else one[1].number
            made += (layout, digests.get(position, NO_DIGEST))
        return made, [None if one is None else one[0] for one in looked]

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
                state.is_foreign = True

    def lifted(self, states: list[StorageState | None], made: list[Any]) -> None:
        """A tensor over memory of others was taken over; remember what it held."""
        if states and states[0] is not None and states[0].is_foreign:
            states[0].lifted = (made[0], made[1])

    def remember(self, tensors: list[torch.Tensor], outputs: list[Any]) -> None:
        """Keep what a write left, so that a later look can tell whether somebody else changed it."""
        for tensor, digest in zip(tensors, outputs[1::2], strict=True):
            if is_strided(tensor):
                state = self.storages.state(tensor)
                state.digest = digest
                state.view = (tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _digest(tensor: torch.Tensor, layout: Layout) -> Digest:
    """What `RecordDigests.of` gives, for most tensors without looking at anything but their bytes."""
    memory = layout.memory
    if memory is not None and (address := _data_pointer(tensor)) and not tensor.is_neg():
        return digest_bytes(memory(address))
    return layout.digest(tensor)


def _differ(one: Digest, other: Digest) -> bool:
    return settled(one) != settled(other)


def written_tensors(traits: OpTraits, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """The tensors that an op wrote, then those that it made, each once."""
    written = traits.written
    if isinstance(result, _Tensor):
        if not written and not traits.hidden_written:
            return [result]
        if traits.returns_target:
            return [args[0]]
    found: dict[int, torch.Tensor] = {}
    _collect((*written_arguments(traits, args, kwargs), result), found)
    return list(found.values())


def written_arguments(traits: OpTraits, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an op writes: tensors, lists of tensors, or None where one was not given."""
    targets = [kwargs.get(at) if isinstance(at, str) else args[at] for at in traits.written
               if isinstance(at, str) or at < len(args)]  # fmt: skip
    if traits.hidden_written and len(args) > traits.hidden_flag and args[traits.hidden_flag]:
        targets += [args[at] for at in traits.hidden_written]
    return targets


def _collect(values: Any, found: dict[int, torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, _Tensor):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)

"""The inputs and outputs of ops: edges to the records that wrote the memory, and digests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import torch

from determinism.digest import digest_bytes
from determinism.frameworks.torch.device_digests import DeviceDigests, Digest, RecordDigests
from determinism.frameworks.torch.ops import ArgumentTable, OpTraits, is_root
from determinism.frameworks.torch.tensor_bytes import digest_tensor, is_strided, memory_of
from determinism.op_semantics import semantics_of
from determinism.sites import SiteTable
from determinism.trace.schema import MOST_OVERLAPS, SHARED, Table
from determinism.trace.spool import resolved_digest
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST, Access

# Numbers the layouts of tensors, and knows which bytes of memory they cover.

_STRIDED = torch.strided
_Key = tuple[Any, ...]


class Layout:
    """How a tensor views its memory."""

    __slots__ = ("digest", "fills_storage", "memory", "number")

    def __init__(self, number: int, fills_storage: bool, memory: Any, digest: Callable[[torch.Tensor], Any]) -> None:
        self.number = number
        self.fills_storage = fills_storage
        """Whether the elements take up all the bytes of the storage."""
        self.memory = memory
        """See `memory_of`."""
        self.digest = digest
        """Returns the digest of a tensor with this layout."""


class KnownLayouts(dict[_Key, Layout]):
    """The known layouts in one kind of memory, by dtype, sizes, strides, offset and storage bytes."""

    __slots__ = ("is_shared",)

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.is_shared = is_shared


class LayoutTable:
    """Numbers dtype, shape, strides, offset, device and storage size."""

    def __init__(self, add: Callable[[str], int], digests: RecordDigests) -> None:
        """Take the function that writes a text and returns its number, and the digests of tensors on devices."""
        self._add = add
        self._digests = digests
        self._by_place: dict[tuple[torch.device, bool], KnownLayouts] = {}
        self._without_storage: dict[_Key, int] = {}
        self.value_number = add(json.dumps(["value"]))
        """The number for a non-tensor value."""

    def where(self, tensor: torch.Tensor, *, is_shared: bool) -> KnownLayouts:
        """Return the known layouts in memory like a tensor's.

        Args:
            tensor: A tensor on the device.
            is_shared: Whether processes share the memory.
        """
        place = (tensor.device, is_shared)
        return self._by_place.get(place) or self._by_place.setdefault(place, KnownLayouts(is_shared))

    def add(self, tensor: torch.Tensor, key: _Key, known: KnownLayouts) -> Layout:
        """Number a new layout."""
        dtype, sizes, strides, offset, storage_bytes = key
        shared = (SHARED,) if known.is_shared else ()
        number = self._new(dtype, sizes, strides, offset, tensor.device, storage_bytes, *shared)
        fills_storage = tensor.nbytes == storage_bytes
        if self._digests.handles(tensor):
            layout = Layout(number, fills_storage, None, self._digests.of)
        else:
            layout = Layout(number, fills_storage, memory_of(tensor), digest_tensor)
        known[key] = layout
        return layout

    def number_without_storage(self, tensor: torch.Tensor) -> int:
        """Return the number for a tensor whose storage is not to be recorded, or that has none of its own."""
        if tensor.is_nested:
            view: _Key = (tuple(size for part in tensor.unbind() for size in part.shape), (), 0)
        elif tensor.layout is _STRIDED:
            view = (tensor.shape, tensor.stride(), tensor.storage_offset())
        else:
            view = (tensor.shape, (), 0)
        key = (tensor.dtype, *view, tensor.device, 0)
        number = self._without_storage.get(key)
        if number is None:
            number = self._without_storage[key] = self._new(*key)
        return number

    def _new(
        self, dtype: Any, sizes: Any, strides: Any, offset: int, device: Any, storage_bytes: int, *shared: str
    ) -> int:
        name = str(dtype).removeprefix("torch.")
        return self._add(json.dumps([name, list(sizes), list(strides), offset, str(device), storage_bytes, *shared]))


# Which record wrote a tensor's memory.
#
# A storage is identified by the address of its object. It is not reused while a weak reference is held, so one is held
# for every known storage until a sweep finds that the storage is gone.

EXTERNAL = -1
_storage_of = torch._C.TensorBase.untyped_storage
_expired = torch.UntypedStorage._expired
_free_weak_reference = torch.UntypedStorage._free_weak_ref
_NEW_BETWEEN_SWEEPS = 256
"""A weak reference keeps the few bytes of the storage object; too many would fragment the allocator's memory."""


class StorageState:
    """What is known about one storage."""

    __slots__ = (
        "digest", "externally_writable", "is_of_threads", "is_unwritten", "key", "layouts", "lifted", "output", "record", "reference", "view",
        "writer", "writes",
    )  # fmt: skip

    def __init__(self, key: int, layouts: KnownLayouts) -> None:
        self.key = key
        self.layouts = layouts
        """The known layouts in memory like this."""
        self.record = EXTERNAL
        """Number of the record that wrote it last; `EXTERNAL` if no record did."""
        self.output = 0
        """Which output of that record is in it."""
        self.digest: Digest = b""
        """Digest of that output when it was written; kept only while a record is captured."""
        self.view: Any = None
        """Sizes, strides, offset and dtype of that output; kept with the digest."""
        self.is_unwritten = False
        """Whether it has not been written since it was allocated."""
        self.externally_writable = False
        """Whether other code can write this memory unseen: NumPy, a C extension, another process."""
        self.lifted: tuple[int, Digest] | None = None
        """Layout and digest of foreign memory (from_numpy) when a tensor was made of it; None once an op wrote it."""
        self.reference: Any = None
        self.writer: Any = None
        """The thread that wrote it last; kept only for threads other than the main one."""
        self.writes = 0
        """How often threads other than the main one wrote it; kept only in their own table."""
        self.is_of_threads = False
        """Whether another thread wrote it, and so may write while the main thread reads; only in the main table."""


class StorageTable:
    """The state of every storage that records have touched."""

    def __init__(self, layouts: LayoutTable) -> None:
        """Take the table of layouts."""
        self._layouts = layouts
        self._states: dict[int, StorageState] = {}
        self._sweep_at = _NEW_BETWEEN_SWEEPS
        self._lock = threading.Lock()

    def look(self, tensor: torch.Tensor) -> tuple[StorageState, Layout]:
        """Return the state of a tensor's storage, and the tensor's layout; a new storage counts as external.

        Raises:
            RuntimeError: The tensor is not a strided tensor over one storage.
        """
        storage = _storage_of(tensor)
        state = self._states.get(storage._cdata)
        if state is None:
            state = self._new(tensor, storage)
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage.nbytes())
        return state, state.layouts.get(key) or self._layouts.add(tensor, key, state.layouts)

    def state(self, tensor: torch.Tensor) -> StorageState:
        """Return the state of a tensor's storage."""
        return self.look(tensor)[0]

    def _new(self, tensor: torch.Tensor, storage: Any) -> StorageState:
        key = storage._cdata
        with self._lock:
            state = self._states.get(key)
            if state is not None:
                return state
            if len(self._states) >= self._sweep_at:
                self._sweep()
            # On a GPU, `is_shared` is always true.
            is_shared = tensor.is_cpu and storage.is_shared()
            state = StorageState(key, self._layouts.where(tensor, is_shared=is_shared))
            state.reference = storage._weak_ref()
            # Memory that PyTorch cannot resize has another owner (from_numpy, frombuffer, dlpack, a memory map).
            state.externally_writable = is_shared or not storage.resizable()
            self._states[key] = state
            return state

    def known(self, tensor: torch.Tensor) -> StorageState | None:
        """Return the state of a tensor's storage if a record has touched it."""
        return self._states.get(_storage_of(tensor)._cdata)

    def share(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory is now shared with other processes."""
        self.state(tensor).layouts = self._layouts.where(tensor, is_shared=True)

    def written_elsewhere(self, key: int) -> None:
        """Note that another thread wrote a storage: its contents are digested when read."""
        state = self._states.get(key)
        if state is not None:
            state.record = EXTERNAL
            state.externally_writable = state.is_of_threads = True

    def contents(self, digest: Callable[[torch.Tensor], Digest]) -> list[tuple[StorageState, Digest]]:
        """Digest every living storage that a record wrote, before code runs that is not recorded.

        Args:
            digest: Returns the digest of a tensor.
        """
        states = [state for state in self._all() if state.record != EXTERNAL and not state.externally_writable]
        return [(state, digest(memory)) for state in states if (memory := self._memory(state)) is not None]

    def forget_changed(
        self, held: list[tuple[StorageState, Digest]] | None, digest: Callable[[torch.Tensor], Digest]
    ) -> None:
        """Make storages written since then external, so that they are digested when next read: the writer is unknown.

        Args:
            held: The result of `contents`; None if that failed, in which case every storage counts as written.
            digest: See `contents`.
        """
        for state in self._all() if held is None else ():
            state.record = EXTERNAL
        for state, before in held or ():
            memory = self._memory(state)
            if memory is not None and resolved_digest(digest(memory)) != resolved_digest(before):
                state.record = EXTERNAL

    def _all(self) -> list[StorageState]:
        with self._lock:
            return list(self._states.values())

    def _memory(self, state: StorageState) -> torch.Tensor | None:
        """The bytes of a storage; None if it is gone or has no values."""
        storage = torch.UntypedStorage._new_with_weak_ptr(state.reference)
        if storage is None or storage.device.type == "meta":
            return None
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def _sweep(self) -> None:
        gone = [key for key, state in self._states.items() if _expired(state.reference)]
        for key in gone:
            _free_weak_reference(self._states.pop(key).reference)
        self._sweep_at = len(self._states) + max(_NEW_BETWEEN_SWEEPS, len(self._states) // 2)


# One stream of records, with the numbers of the names in it.


class Stream:
    """A writer, and what all recorders that use it share."""

    def __init__(self, writer: ProcessWriter, devices: DeviceDigests | None = None) -> None:
        """Take the writer of the records, and the devices on which tensors are digested."""
        self.writer = writer
        self.digests = RecordDigests(writer, devices or DeviceDigests())
        self.sites = SiteTable(lambda t: writer.name(Table.FRAME, t), lambda t: writer.name(Table.STACK, t))
        self.arguments = ArgumentTable(lambda t: writer.name(Table.ARGUMENTS, t))
        self.layouts = LayoutTable(lambda t: writer.name(Table.LAYOUT, t), self.digests)
        self.storages = StorageTable(self.layouts)
        self._ops: dict[str, int] = {}
        self._modules: dict[str, int] = {}
        self._overlapped: list[int] = []
        """Records whose inputs another thread wrote while their ops ran."""

    def note_overlap(self, record: int) -> None:
        """Note that another thread wrote what a record used while its op ran."""
        noted = self._overlapped
        if len(noted) < MOST_OVERLAPS:
            noted.append(record)
            if not len(noted) & (len(noted) - 1):
                self.describe_overlaps()

    def describe_overlaps(self, *, always: bool = False) -> None:
        """Write into the trace which records overlapped with another thread's writes.

        Args:
            always: Whether to do so even if none did, which says that all records ran undisturbed.
        """
        if self._overlapped or always:
            self.writer.describe(overlapped=list(self._overlapped))

    def op_number(self, name: str) -> int:
        """Return the number of an op's name."""
        number = self._ops.get(name)
        if number is None:
            number = self._ops[name] = self.writer.op(name, semantics_of(name))
        return number

    def module_number(self, path: str) -> int:
        """Return the number of a module's path."""
        number = self._modules.get(path)
        if number is None:
            number = self._modules[path] = self.writer.name(Table.MODULE, path)
        return number


READ = int(Access.READ)
_CARRY = int(Access.CARRY)
_data_pointer = torch._C.TensorBase.data_ptr
_Tensor = torch.Tensor


class InputEdges:
    """The inputs of one record, in the writer's form."""

    __slots__ = ("digests", "edges", "used", "watched")

    def __init__(self) -> None:
        self.edges: list[int] = []
        """Flat groups of four: record, output, access, layout."""
        self.digests: tuple[Any, ...] = ()
        """Flat pairs: position among the inputs, and the digest of that input."""
        self.watched: list[tuple[torch.Tensor, Layout, Digest]] | None = None
        """Inputs that another thread may write while the op runs, with their digests."""
        self.used: list[tuple[StorageState, int, StorageState | None, int]] | None = None
        """In a thread: its storage states, their write counts, and the main thread's states with their last records."""

    def extend(self, other: InputEdges) -> None:
        """Add the inputs of another record."""
        inputs = len(self.edges) // 4
        self.edges += other.edges
        for position, digest in zip(other.digests[::2], other.digests[1::2], strict=True):
            self.digests += (inputs + position, digest)

    def with_outputs(self, record: int, outputs: list[Any]) -> InputEdges:
        """Return a record's inputs and outputs as the inputs of another record that reads both."""
        both = InputEdges()
        both.extend(self)
        for position, layout in enumerate(outputs[::2]):
            both.edges += (record, position, READ, layout)
        return both


class Edges:
    """Tracks which record wrote which memory."""

    def __init__(self, stream: Stream, leaf_read: Callable[[torch.Tensor], None], *, paranoid: bool) -> None:
        """Make an empty one.

        Args:
            stream: The stream of the records that write the memory.
            leaf_read: Called when a leaf that requires a gradient is read.
            paranoid: Digest every input, even if its producer was recorded.
        """
        self.storages = stream.storages
        self._look = stream.storages.look
        self._layouts = stream.layouts
        self._digests = stream.digests
        self._handles = stream.digests.handles
        self._leaf_read = leaf_read
        self._paranoid = paranoid
        self._watches = False
        """Whether another thread may write the current input while the op runs."""

    def has_overlapped(self, looked: InputEdges, written: list[torch.Tensor]) -> bool:
        """Whether the bytes show that another thread wrote what the op that just ran had read."""
        if looked.watched is None:
            return False
        own = {_storage_of(tensor)._cdata for tensor in written if is_strided(tensor)}
        return any(
            resolved_digest(digest) != resolved_digest(_digest(tensor, layout))
            for tensor, layout, digest in looked.watched
            if tensor.is_cpu and _storage_of(tensor)._cdata not in own
        )

    def look_at_arguments(self, traits: OpTraits, args: Any, kwargs: Any) -> InputEdges:
        """Look at every tensor among the arguments of an op that is about to run."""
        looked = InputEdges()
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

    def _look_at_list(self, values: Any, looked: InputEdges) -> None:
        for value in values:
            if isinstance(value, _Tensor):
                self.look_at(value, looked)
            elif type(value) is list:
                self._look_at_list(value, looked)

    def _look_at_target(self, traits: OpTraits, value: Any, args: Any, looked: InputEdges) -> None:
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

    def look_at(self, tensor: torch.Tensor, looked: InputEdges, access: int = READ) -> Layout | None:
        """Add the edge from a tensor to the record that wrote its memory; returns the tensor's layout."""
        try:
            state, layout = self._look(tensor)
        except RuntimeError:
            if is_strided(tensor):
                raise
            self.look_at_value(tensor, looked, access)
            return None
        record = state.record
        if (record == EXTERNAL or state.externally_writable or self._paranoid) and access == READ:
            digest = _digest(tensor, layout)
            looked.digests += (len(looked.edges) // 4, digest)
            if self._watches or state.is_of_threads:
                looked.watched = looked.watched or []
                looked.watched.append((tensor, layout, digest))
            if state.lifted is not None and state.lifted[0] == layout.number and _differ(state.lifted[1], digest):
                # The owner refilled its buffer: what is read now did not pass through the op that lifted the memory.
                record = EXTERNAL
        looked.edges += (record, state.output, access, layout.number)
        if tensor.requires_grad and torch.is_grad_enabled() and tensor.is_leaf:
            self._leaf_read(tensor)
        return layout

    def _layout(self, tensor: torch.Tensor) -> Layout | None:
        return self._look(tensor)[1] if is_strided(tensor) else None

    def look_at_value(self, tensor: torch.Tensor, looked: InputEdges, access: int = READ) -> None:
        """Add a tensor as an input that is known only by its digest."""
        looked.digests += (len(looked.edges) // 4, self._digests.of(tensor))
        looked.edges += (EXTERNAL, 0, access, self._layouts.number_without_storage(tensor))

    def outputs(
        self, traits: OpTraits, tensors: list[torch.Tensor]
    ) -> tuple[list[int | Digest], list[StorageState | None]]:
        """Return flat pairs of layout and digest for what an op wrote, and the states of the storages."""
        made: list[int | Digest] = []
        states: list[StorageState | None] = []
        has_no_values = traits.is_uninitialized or traits.is_asynchronous
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

    def wrote(self, states: list[StorageState | None], record: int, *, is_unwritten: bool = False) -> None:
        """Note that these storages now hold what a record wrote, or only allocated, as its outputs."""
        for position, state in enumerate(states):
            if state is not None:
                state.record = record
                state.output = position
                state.is_unwritten = is_unwritten
                state.lifted = None

    def in_flight(self, states: list[StorageState | None]) -> None:
        """Note that these storages may still be being written: their contents are digested when read."""
        for state in states:
            if state is not None:
                state.externally_writable = True

    def lifted(self, states: list[StorageState | None], made: list[Any]) -> None:
        """Remember what foreign memory held when a tensor was made of it."""
        if states and states[0] is not None and states[0].externally_writable:
            states[0].lifted = (made[0], made[1])

    def remember(self, tensors: list[torch.Tensor], outputs: list[Any]) -> None:
        """Keep what a write left, so that a later check can detect an unrecorded change."""
        for tensor, digest in zip(tensors, outputs[1::2], strict=True):
            if is_strided(tensor):
                state = self.storages.state(tensor)
                state.digest = digest
                state.view = (tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _digest(tensor: torch.Tensor, layout: Layout) -> Digest:
    """Return the same as `RecordDigests.of`; for most tensors this looks only at their bytes."""
    memory = layout.memory
    if memory is not None and (address := _data_pointer(tensor)) and not tensor.is_neg():
        return digest_bytes(memory(address))
    return layout.digest(tensor)


def _differ(one: Digest, other: Digest) -> bool:
    return resolved_digest(one) != resolved_digest(other)


def written_tensors(traits: OpTraits, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """Return the tensors that an op wrote, then those that it made, each once."""
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
    """Return the arguments that an op writes: tensors, lists of tensors, or None for one that was not given."""
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

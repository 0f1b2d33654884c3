"""The recorder of a thread whose ops are recorded by a native observer.

The observer writes ordinary records by itself, with the numbers of names that it keeps. For new names and rare cases it
calls the methods here that begin with `native_`. Ops on tensors that are not ordinary go through `native_before` and
`native_after`, which do what the handler of the dispatch mode does.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from determinism.digest import digest_text
from determinism.frameworks.progress import ThreadProgress
from determinism.frameworks.torch import native_library
from determinism.frameworks.torch.device_digests import DeviceDigests, Digest
from determinism.frameworks.torch.edges import InputEdges, Layout, LayoutTable, StorageTable, Stream
from determinism.frameworks.torch.mode_recorder import ModeRecorder
from determinism.frameworks.torch.native_library import NotNative
from determinism.frameworks.torch.ops import OpTraits, as_called, traits_of, value_text
from determinism.frameworks.torch.recorder import UNREAD_IN, Recorder, Threads
from determinism.frameworks.torch.tensor_bytes import is_strided
from determinism.frameworks.wrapping import Undo, wrap
from determinism.run_spec import RECORDER_VARIABLE, recorder_choice
from determinism.sites import SiteTable
from determinism.trace.spool import FIRST_OFFSET, ROWS, ROWS_OFFSET, Spool, resolved_digest, row_bytes
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST, Level

_storage_of = torch._C.TensorBase.untyped_storage
_FLAGS = (
    "is_ignored", "is_view", "is_uninitialized", "is_asynchronous", "is_lift", "draws", "has_unvalued_inputs",
    "reads_written", "keeps_unwritten", "returns_target",
)  # fmt: skip
"""Traits that the observer uses, in the order of its flags."""
_BY_PYTHON = 1 << len(_FLAGS)


class NativeStorages(StorageTable):
    """The state of every storage that records have touched, kept by the observer."""

    def __init__(self, layouts: LayoutTable, native: Any) -> None:
        """Take the table of layouts, and the observer's stream."""
        super().__init__(layouts)
        self.native = native
        """The observer's stream."""

    def look(self, tensor: torch.Tensor) -> tuple[Any, Layout]:
        """See `StorageTable.look`."""
        storage = _storage_of(tensor)
        state = self.native.state(tensor)
        layouts = state.layouts
        if layouts is None:
            layouts = state.layouts = self._layouts.where(tensor, is_shared=state.is_shared)
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage.nbytes())
        return state, layouts.get(key) or self._layouts.add(tensor, key, layouts)

    def known(self, tensor: torch.Tensor) -> Any:
        """Return the state of a tensor's storage if a record has touched it."""
        _storage_of(tensor)
        return self.native.known(tensor)

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether processes share the memory of a tensor."""
        # On a GPU, `is_shared` is always true.
        return tensor.is_cpu and _storage_of(tensor).is_shared()

    def share(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory is now shared with other processes."""
        state: Any = self.state(tensor)
        state.is_shared = True
        state.layouts = self._layouts.where(tensor, is_shared=True)

    def written_elsewhere(self, key: int) -> None:
        """Note that another thread wrote a storage: its contents are digested when read."""
        self.native.written_elsewhere(key)

    def _all(self) -> Any:
        return self.native.states()

    def _memory(self, state: Any) -> Any:
        return state.bytes()


class NativeSites(SiteTable):
    """The stacks of a stream, whose outermost frame the observer knows."""

    def __init__(self, stream: Any, *add: Callable[[str], int]) -> None:
        """Take the observer's stream, and the functions that write a frame and a stack."""
        self._stream = stream
        super().__init__(*add)

    @property
    def outermost(self) -> FrameType | None:
        """See `SiteTable.outermost`."""
        return self._outermost

    @outermost.setter
    def outermost(self, frame: FrameType | None) -> None:
        # The observer only borrows the reference.
        self._stream.end_stacks_at(frame)
        self._outermost = frame


class NativeStream(Stream):
    """A stream whose rows the observer writes."""

    def __init__(self, writer: ProcessWriter, devices: DeviceDigests, library: Any) -> None:
        """Take the writer of the records, the devices on which tensors are digested, and the loaded library."""
        super().__init__(writer, devices)
        self._library = library
        library.digest_on(devices.kind)
        self.digests.below = library.digest_each
        self.native = library.Stream(self)
        self.sites = NativeSites(self.native, *self.sites.adding)
        self.storages = NativeStorages(self.layouts, self.native)
        writer.share(self)

    def attach(self, spool: Spool) -> None:
        """Write rows into this spool from now on."""
        sizes = [row_bytes(group) for group in ROWS]
        capacities = (spool.record_capacity, spool.child_capacity)
        self.native.attach(spool.memory, spool.counts, spool.offsets, sizes, *capacities, ROWS_OFFSET, FIRST_OFFSET)

    def detach(self) -> None:
        """Pass rows through `ProcessWriter.append` from now on."""
        self.native.detach()

    def queue_of(self, device: torch.device) -> Any:
        """Return the native queue of digests on a device; see `RecordDigests.queue_of`."""
        return self.digests.queue_of(device, self._library.DeviceQueue)


class KnownOp(NamedTuple):
    """What Python knows about an op."""

    name: str
    traits: OpTraits
    function: Any


class _Call(NamedTuple):
    """A running op that Python records."""

    op: KnownOp
    traits: OpTraits
    args: Any
    kwargs: Any
    looked: Any
    generator: Any


class NativeRecorder(Recorder):
    """Records the ops of one thread, seen by a native observer."""

    name = "native"

    def __init__(self, library: Any, *, tracks_ops: bool = True, paranoid: bool = False) -> None:
        """Make one that is inactive until `begin`.

        Args:
            library: The loaded library.
            tracks_ops: Whether ops are seen.
            paranoid: Digest every input of every op.
        """
        self._library = library
        self.native = library.Recorder(self)
        self.identities = library.identities
        self.module_calls = (library.enter_module, library.leave_module)
        self.hand_over = library.hand_over
        self._is_active = False
        self._wake: Callable[[Any], None] | None = None
        self._capture: Any = None
        self._kept_values: Any = None
        super().__init__(tracks_ops=tracks_ops, paranoid=paranoid)

    # The settings that decide whether and how the observer records are kept in it.

    @property
    def is_active(self) -> bool:
        """Whether it records."""
        return self._is_active

    @is_active.setter
    def is_active(self, value: bool) -> None:
        # Also kept here: each module call reads it, and reading it from the observer takes twice as long.
        self._is_active = self.native.is_active = value

    @property
    def _is_busy(self) -> bool:
        return self.native.is_busy

    @_is_busy.setter
    def _is_busy(self, value: bool) -> None:
        self.native.is_busy = value

    @property
    def is_waiting(self) -> bool:
        """See `RecordMaker.is_waiting`."""
        return bool(self.native.is_waiting)

    @is_waiting.setter
    def is_waiting(self, value: bool) -> None:
        self.native.is_waiting = value

    @property
    def graph_depth(self) -> int:
        """See `RecordMaker.graph_depth`."""
        return int(self.native.graph_depth)

    @graph_depth.setter
    def graph_depth(self, value: int) -> None:
        self.native.graph_depth = value

    @property
    def on_first_op(self) -> Callable[[Any], None] | None:
        """See `RecordingGuard.on_first_op`."""
        return self._wake

    @on_first_op.setter
    def on_first_op(self, value: Callable[[Any], None] | None) -> None:
        self._wake = value
        self.native.is_asleep = value is not None

    @property
    def capture(self) -> Any:
        """See `RecordMaker.capture`."""
        return self._capture

    @capture.setter
    def capture(self, value: Any) -> None:
        self._capture = value
        self._note_lookers()

    @property
    def kept_values(self) -> Any:
        """See `RecordMaker.kept_values`."""
        return self._kept_values

    @kept_values.setter
    def kept_values(self, value: Any) -> None:
        self._kept_values = value
        self._note_lookers()

    def _note_lookers(self) -> None:
        self.native.asks_python = self._capture is not None or self._kept_values is not None

    @property
    def is_by_thread(self) -> bool:
        """See `Recorder.is_by_thread`."""
        return True

    def another(self) -> NativeRecorder:
        """Make one of the same kind, for another thread."""
        return NativeRecorder(self._library, tracks_ops=self.tracks_ops, paranoid=self.paranoid)

    def stream_of(self, writer: ProcessWriter, devices: DeviceDigests) -> Stream:
        """Make a stream that recorders of this kind share."""
        return NativeStream(writer, devices, self._library)

    def _new_links(self) -> Any:
        return self.native.links

    def begin(self, stream: Stream, **keywords: Any) -> None:
        """Record into a stream from now on; see `RecordMaker.begin`."""
        super().begin(stream, **keywords)
        assert isinstance(stream, NativeStream)
        main = getattr(self.edges, "main", None)
        progress = self.progress
        self.native.begin(
            stream.native,
            self.number,
            progress.place,
            (progress.process if isinstance(progress, ThreadProgress) else progress).place,
            self._calls,
            self.sites,
            self.edges,
            self.paranoid,
            main.native if isinstance(main, NativeStorages) else None,
        )

    def install(self, threads: Threads) -> Undo:
        """Show the observer every op from now on, if ops are recorded; returns a function that ends this."""
        self._library.install(threads, UNREAD_IN, self.tracks_ops)
        hiding = _modules_with(_HIDING) if self.tracks_ops else []
        undos = [wrap(module, _HIDING, partial(_hidden, self._library)) for module in hiding]

        def uninstall() -> None:
            for undo in undos:
                undo()
            self._library.uninstall()

        return uninstall

    def enter_thread(self) -> None:
        """Start observing ops in the calling thread."""
        self._library.attach_thread(self.native)

    def leave_thread(self) -> None:
        """Stop observing ops in the calling thread."""
        self._library.detach_thread()

    def run_unrecorded(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """See `RecordMaker.run_unrecorded`; hidden from the program's profilers as well."""
        before = self._library.observe(False)
        try:
            return super().run_unrecorded(action, *arguments, **keywords)
        finally:
            self._library.observe(before)

    def end(self) -> None:
        """End recording for good."""
        super().end()
        self.native.close()

    def are_own(self, tensors: Sequence[torch.Tensor]) -> bool:
        """See `RecordMaker.are_own`."""
        return self._library.are_own(tensors)

    def hold(self, name: str, tensors: Sequence[torch.Tensor], text: str, generators: Sequence[bytes]) -> int:
        """See `RecordMaker.hold`."""
        number = self.arguments.text_number(text) if text else -1
        record = int(self.native.hold(tensors, self.stream.op_number(name), number, generators))
        return super().hold(name, tensors, text, generators) if record < 0 else record

    def module_returned(self, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """See `RecordMaker.module_returned`."""
        try:
            is_recorded = self.native.module_returned(self.stream.op_number(name), given, made)
        except Exception as error:
            self.failed(name, error)
            return
        if not is_recorded:
            super().module_returned(name, given, made)

    def state_digest(self, generator: torch.Generator) -> bytes:
        """See `RecordMaker.state_digest`."""
        if generator.device.type != "cpu":
            return super().state_digest(generator)
        return bytes(self.native.state_digest(generator))

    def _look_at_each(self, tensors: Sequence[torch.Tensor], looked: InputEdges) -> None:
        if self.native.asks_python:
            super()._look_at_each(tensors, looked)
            return
        if not isinstance(tensors, list):
            tensors = list(tensors)
        at = 0
        while at < len(tensors):
            at, edges, digests = self.native.look_at_each(tensors, at, len(looked.edges) // 4)
            looked.edges += edges
            looked.digests += digests
            if at < len(tensors):
                # This tensor is not ordinary.
                self.edges.look_at(tensors[at], looked)
                at += 1

    # Called by the observer.

    def native_learn(self, name: str, overload: str) -> tuple[Any, ...]:
        """Look up how an op is recorded.

        Args:
            name: Its qualified name.
            overload: The name of its overload; empty for the default one.

        Returns:
            The object to pass back for this op later, the flags, and the positions of the arguments that it writes, of
            the flag `accumulate` or -1, of arguments written undeclared, of the flag for that or -1, and of the outputs
            that are workspaces.
        """
        namespace, _, base = name.partition("::")
        function = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        traits = traits_of(function)
        flags = sum(1 << bit for bit, trait in enumerate(_FLAGS) if getattr(traits, trait))
        if traits.root_at is not None or traits.is_asynchronous:
            flags |= _BY_PYTHON
        positions = {argument: position for position, argument in enumerate(traits.argument_names)}
        return (
            KnownOp(traits.name, traits, function),
            flags,
            [positions[at] if isinstance(at, str) else at for at in traits.written],
            -1 if traits.accumulate_at is None else traits.accumulate_at,
            list(traits.hidden_written),
            traits.hidden_flag if traits.hidden_written else -1,
            sorted(traits.workspaces),
        )

    def native_arguments(self, op: KnownOp, args: Any, kwargs: Any) -> int:
        """Return the number of the text of an op's arguments; -1 if there are none."""
        return self.arguments.number(self.stream.op_number(op.name), op.traits, args, kwargs)

    def native_helper(self) -> int:
        """Return the number of the calling thread, which works for the recorder's thread."""
        return self.helper_number(get_ident())

    def native_lifted(self, tensor: torch.Tensor, lifted: Digest) -> tuple[bytes, bool]:
        """Digest foreign memory on a device; also returns whether it differs from when it was lifted."""
        digest = resolved_digest(self.stream.digests.of(tensor))
        return digest, digest != resolved_digest(lifted)

    def native_leaf_read(self, tensor: torch.Tensor) -> bool:
        """Note that a leaf that requires a gradient was read; returns whether it is a parameter."""
        self._leaf_read(tensor)
        return isinstance(tensor, torch.nn.Parameter)

    def native_output(self, tensor: torch.Tensor, is_digested: bool) -> tuple[int, bytes, Any]:
        """Return layout, digest and state of an output that is not an ordinary CPU tensor."""
        digest = resolved_digest(self.stream.digests.of(tensor)) if is_digested else NO_DIGEST
        if is_strided(tensor):
            state, layout = self.stream.storages.look(tensor)
            return layout.number, digest, state
        return self.layouts.number_without_storage(tensor), digest, None

    def native_value(self, value: Any) -> tuple[int, bytes]:
        """Return layout and digest of a non-tensor value."""
        return self.layouts.value_number, digest_text(value_text(value))

    def native_before(self, op: KnownOp, args: Any, kwargs: Any) -> _Call | None:
        """Look at an op that is about to run; returns what `native_after` needs, None if this failed."""
        traits = op.traits
        try:
            if traits.is_view_or_copy:
                traits = as_called(traits, args, kwargs)
            looked, generator = self._before(traits, op.function, args, kwargs)
        except Exception as error:
            self.failed(traits.name, error)
            return None
        return _Call(op, traits, args, kwargs, looked, generator)

    def native_after(self, call: _Call | None, result: Any) -> None:
        """Record an op that has run."""
        if call is None:
            return
        op, traits, args, kwargs, looked, generator = call
        try:
            self._after(traits, self.stream.op_number(op.name), args, kwargs, looked, generator, result)
        except Exception as error:
            self.failed(traits.name, error)


# PyTorch disables all dispatch modes while it prints tensors or compiles: the ops inside are not the program's.

_HIDING = "_disable_current_modes"


def _modules_with(name: str) -> list[Any]:
    """Return the modules that call the function; modules imported later take it from the first of these."""
    found = (sys.modules.get(module) for module in ("torch.utils._python_dispatch", "torch._dynamo.convert_frame"))
    return [module for module in found if hasattr(module, name)]


@contextmanager
def _hidden(library: Any, original: Callable[[], Any]) -> Iterator[Any]:
    with original() as modes:
        library.hide()
        try:
            yield modes
        finally:
            library.show()


# Chooses what records the ops of this process: the native observer or a dispatch mode.


def recorder_for(level: Level, *, paranoid: bool) -> tuple[Recorder, str]:
    """Make the recorder of the main thread; also returns why it is not the native one, or an empty string if it is."""
    facts = {"tracks_ops": level is Level.OP, "paranoid": paranoid}
    try:
        _check_wanted()
        return NativeRecorder(native_library.load(), **facts), ""
    except NotNative as reason:
        return ModeRecorder(**facts), str(reason)


def _check_wanted() -> None:
    chosen = recorder_choice(os.environ)
    if chosen == "python":
        raise NotNative(f"{RECORDER_VARIABLE}=python chooses it")
    if chosen not in ("", "native"):
        raise NotNative(f"{RECORDER_VARIABLE} is {chosen}, which is neither native nor python")
    if not chosen:
        native_library.check_tested()

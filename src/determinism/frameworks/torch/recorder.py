"""Turns every op into a record of its inputs and outputs, whichever way the op is observed."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.progress import Progress, RecordingGuard, ThreadProgress, program_threads
from determinism.frameworks.torch.device_digests import DeviceDigests
from determinism.frameworks.torch.edges import (
    EXTERNAL,
    READ,
    Edges,
    InputEdges,
    Layout,
    StorageState,
    StorageTable,
    Stream,
    written_tensors,
)
from determinism.frameworks.torch.modules import (
    NO_MODULE,
    NOWHERE,
    ForwardLinks,
    HeldTensors,
    Identities,
    Link,
    ModulePaths,
    StepLedger,
    has_optimizer,
    sequence_number,
)
from determinism.frameworks.torch.ops import (
    OpTraits,
    generator_of,
    state_digest,
    value_text,
)
from determinism.frameworks.torch.tensor_bytes import is_plain, is_strided, plain_parts
from determinism.frameworks.wrapping import Undo, wrap
from determinism.sites import frame_text, innermost_user_frame
from determinism.trace.kept_values import sampled_places
from determinism.trace.schema import Meaning
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST, Phase, Role

# Keeps elements of the tensors that records produce, so that runs on different machines can be compared by how far
# apart their values are.

_MOST_KNOWN = 4096
_data_pointer = torch._C.TensorBase.data_ptr


class KeptValues:
    """Keeps elements of tensors: the same ones of all tensors of one size."""

    def __init__(self, most: int) -> None:
        """Make one.

        Args:
            most: The maximum number of elements kept per tensor.
        """
        self._most = most
        self._places: dict[tuple[int, torch.device], torch.Tensor] = {}

    def add(self, writer: ProcessWriter, record: int, tensors: Sequence[torch.Tensor], outputs: Sequence[Any]) -> None:
        """Keep elements of a record's outputs.

        Args:
            writer: The writer of the record.
            record: The record's number.
            tensors: The record's outputs.
            outputs: Layout and digest of each output; one without a digest holds meaningless bytes.
        """
        for output, (tensor, digest) in enumerate(zip(tensors, outputs[1::2], strict=False)):
            if digest == NO_DIGEST or not is_plain(tensor) or not tensor.numel() or tensor.is_quantized:
                continue
            try:
                writer.values(record, output, self._elements(tensor.detach()))
            except (RuntimeError, TypeError) as error:
                writer.blind_spot(
                    "values-not-kept", f"values of {tensor.dtype}", f"{type(error).__name__}: {error}"[:300]
                )

    def _elements(self, tensor: torch.Tensor) -> bytes:
        tensor = tensor.resolve_conj().resolve_neg()
        kept = torch.take(tensor, self._places_in(tensor)) if tensor.numel() > self._most else tensor.contiguous()
        kept = kept.cpu()
        return ctypes.string_at(_data_pointer(kept), kept.nbytes)

    def _places_in(self, tensor: torch.Tensor) -> Any:
        key = (tensor.numel(), tensor.device)
        if key not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            self._places[key] = torch.tensor(sampled_places(tensor.numel(), self._most), device=tensor.device)
        return self._places[key]


# The interface of observers that examine ops while a recorder records them.


class OpObserver(Protocol):
    """Examines what a recorder records."""

    def __call__(self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """Examine an op that is about to run."""

    def after(self, recorder: RecordMaker, traits: OpTraits, record: int, written: list[torch.Tensor]) -> None:
        """Examine an op that has run and was recorded under the number `record`."""

    def event(self, recorder: RecordMaker, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Examine an event other than an op that is about to be recorded."""


# Makes the records of one thread: of ops, and of everything else that happens to tensors.

_BETWEEN = ("determinism.", "torch._", "torch.utils._")
"""Modules whose frames are between an op and its caller."""
UNREAD_IN = _BaseDataLoaderIter.__init__.__code__
"""Draws and reads a seed for workers, even if there are none (torch 2.13: `torch/utils/data/dataloader.py`). That read is not a result of
the program: what workers draw with the seed is recorded in them, and shows in the batches. A sampler reads values in its own code."""


def _is_unread() -> bool:
    """Whether the code that reads a value is `UNREAD_IN`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code is UNREAD_IN


num_function_modes = torch._C._len_torch_function_stack
num_dispatch_modes = torch._C._len_torch_dispatch_stack
_current_node = torch._C._current_autograd_node
_frame = sys._getframe
_BACKWARD = Phase.BACKWARD
_FORWARD = Phase.FORWARD
_OP = Role.OP


class FormulaNodes(Protocol):
    """Lets some nodes of the autograd graph run without a mode, see `mode_recorder.py`."""

    has_any: bool
    """Whether an op with such a node as its backward has run."""

    def ran_forward(self, traits: OpTraits, args: Any, looked: InputEdges, record: int, outputs: list[Any]) -> None:
        """Note that an op ran whose backward may be such a node."""

    def saw(self, node: Any) -> None:
        """Note that an op of a node was recorded, so a mode was active."""

    def run_backward(self, run: Any, roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Run a graph; each of its nodes that depends on modes runs without the recorder."""


class RecordMaker(RecordingGuard):
    """Tracks the state of a thread, and records what it does."""

    _own_modes = 0
    """How many of the active dispatch modes are our own."""

    def __init__(self, *, tracks_ops: bool = True, paranoid: bool = False) -> None:
        """Make one that is inactive until `begin`.

        Args:
            tracks_ops: Whether ops are seen; without them, the producer of a tensor is unknown.
            paranoid: Digest every input of every op.
        """
        super().__init__()
        self.tracks_ops = tracks_ops
        self.paranoid = paranoid
        self.capture: OpObserver | None = None
        """Examines every op before it runs, and every event; set in a confirming run, and to check batch rows."""
        self.kept_values: KeptValues | None = None
        """Keeps elements of the records' outputs, if requested."""
        self.saving: list[torch.Tensor] | None = None
        """What the current call of `torch.save` has saved so far; None outside of one."""
        self.graph_depth = 0
        """How many calls of compiled graphs are running."""
        self.formula_nodes: FormulaNodes | None = None
        """Lets some nodes of the autograd graph run without a mode, if a mode records the ops."""
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.ledger: StepLedger | None = None
        """Gets the contents of each step, if a ledger is kept."""
        self.is_waiting = False
        """Whether the window of steps whose ops are recorded has not begun: only the ledger goes into the trace."""
        self.state_every = 1
        """Every how many steps the ledger gets the held tensors other than gradients."""
        self.groups_held = True
        """Whether many tensors of one kind may share one record at the end of a step, where ops are not recorded."""
        self.thread = get_ident()

    identities: Identities | None = None
    """See `HeldTensors`."""
    module_calls: tuple[Callable[[torch.nn.Module], bool], Callable[[torch.nn.Module], bool]] | None = None
    """Native functions that note a module's call (False: Python must) and its return; None if Python notes all calls."""
    hand_over: Callable[[Any, str], bool] | None = None
    """Records natively, under a name, that the program gets a tensor's memory (False: Python must); None if Python records all."""

    def _new_links(self) -> Any:
        """Make the map from nodes of the autograd graph to the records that made them."""
        return ForwardLinks()

    def run_unrecorded(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run our own code outside an op, hidden from the program's modes."""
        if not num_function_modes() and num_dispatch_modes() <= self._own_modes:
            return super().run_unrecorded(action, *arguments, **keywords)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return super().run_unrecorded(action, *arguments, **keywords)

    def begin(
        self,
        stream: Stream,
        *,
        number: int = 0,
        edges: Callable[[Callable[[torch.Tensor], None]], Edges] | None = None,
        progress: Callable[[Callable[[str], None]], Progress] = Progress,
    ) -> None:
        """Record into a stream from now on, and forget the earlier state.

        Args:
            stream: Takes the records.
            number: Number of this thread in the stream.
            edges: Makes the `Edges`, given the function to call when a leaf is read.
            progress: Makes the `Progress`, given the function to call when a step ends.
        """
        self.stream = stream
        self.writer = stream.writer
        self.sites = stream.sites
        self.arguments = stream.arguments
        self.layouts = stream.layouts
        self.modules = ModulePaths(stream.module_number)
        self.held = HeldTensors(self.modules, self.identities)
        self.edges = edges(self._leaf_read) if edges else Edges(stream, self._leaf_read, paranoid=self.paranoid)
        self.progress = progress(self._step_ended)
        self._known: dict[int, tuple[OpTraits, int, Any, Any]] = {}
        """By the id of an op: its traits, its number, its runner, and the op, kept alive so that the id stays valid."""
        self._calls = self.modules.calls
        self._links: Any = self._new_links()
        self.number = number
        self._helpers: dict[int, int] = {}
        self._helper_numbers = itertools.count(number + 1)
        self.on_first_op = None
        self.is_active = True

    def append(
        self, role: Role, op: int, arguments: int, looked: InputEdges, outputs: Any, generators: Sequence[bytes]
    ) -> int:
        """Add a record; returns its number."""
        is_own = (ident := get_ident()) == self.thread
        # A backward on a GPU runs in a thread of the framework, with the modes of the calling thread.
        thread = self.number if is_own else self.helper_number(ident)
        phase, link = self.place()
        if is_own:
            stack = self.sites.stack(_frame(3), self._calls)
        else:
            # A thread of the framework that runs no Python code has only our own frames.
            stack = self.sites.stack_of_helper(_frame(), sys._current_frames().get(self.thread), self._calls)
        cells = (thread, self.progress.step, phase, role, op, link.module, stack, link.record, link.stack, arguments)
        record = self.writer.append(cells, looked.edges, looked.digests, outputs, generators)
        if is_own and (sequence := sequence_number()) != self._links.last:
            self._links.add(sequence, Link(record, stack, link.module))
        return record

    def helper_number(self, ident: int) -> int:
        """Return the number of a framework thread that works for this recorder's thread."""
        known = self._helpers.get(ident)
        return self._helpers.setdefault(ident, next(self._helper_numbers)) if known is None else known

    def place(self) -> tuple[Phase, Link]:
        """Return the phase, with the link of a backward op to its forward op, or else of the module being called."""
        node = _current_node()
        if node is not None:
            if self.formula_nodes is not None and self.formula_nodes.has_any:
                self.formula_nodes.saw(node)
            return _BACKWARD, self._links.of(node._sequence_nr())
        calls = self._calls
        if calls:
            return _FORWARD, calls[-1].link
        return (Phase.OPTIMIZER if self.progress.optimizer_depth else self.progress.phase), NOWHERE

    def event(
        self,
        role: Role,
        name: str,
        tensors: Sequence[torch.Tensor],
        *,
        text: str = "",
        given: Sequence[torch.Tensor] = (),
        values: bool = False,
        plain_values: Sequence[bytes] = (),
        generators: Sequence[bytes] = (),
        phase: Phase | None = None,
        are_plain: bool = False,
    ) -> int:
        """Record an event that concerns tensors: an escape, a loss, what is held.

        Args:
            role: The role of the record.
            name: Its name, such as `determinism::tolist`.
            tensors: The tensors concerned.
            text: Kept as the record's arguments.
            given: Input tensors of the event, to be digested.
            values: Whether to digest the tensors as the record's outputs.
            plain_values: Bytes that represent non-tensor values; outputs as well.
            generators: Digests of the states of generators.
            phase: Replaces the current phase.
            are_plain: Whether the tensors are known to hold their data themselves.

        Returns:
            The record's number; -1 if nothing is recorded yet.
        """
        looked = InputEdges()
        if not are_plain:
            tensors = [part for tensor in tensors for part in plain_parts(tensor)]
        if self.is_waiting:
            self._note_in_ledger(role, tensors, plain_values)
            return -1
        for part in (part for tensor in given for part in plain_parts(tensor)):
            self.edges.look_at_value(part, looked)
        if self.tracks_ops:
            self._look_at_each(tensors, looked)
        outputs: list[Any] = []
        digests = self.stream.digests.of_each(tensors) if values else []
        for tensor, digest in zip(tensors, digests, strict=True) if values else ():
            outputs += (self.layouts.number_without_storage(tensor), digest)
        for value in plain_values:
            outputs += (self.layouts.value_number, digest_bytes(value))
        if self.ledger is not None and values:
            self.ledger.add(role, tensors, digests, [digest_bytes(value) for value in plain_values])
        arguments = self.arguments.text_number(text) if text else -1
        with self.progress.in_phase(phase or self.progress.phase):
            if self.capture is not None:
                self.capture.event(self, name, tensors)
            record = self.append(role, self.stream.op_number(name), arguments, looked, outputs, generators)
        if self.kept_values is not None and values:
            self.kept_values.add(self.writer, record, tensors, outputs)
        return record

    def _note_in_ledger(self, role: Role, tensors: Sequence[torch.Tensor], plain_values: Sequence[bytes]) -> None:
        if self.ledger is not None and role in (Role.BATCH, Role.LOSS):
            digests = self.stream.digests.of_each(tensors)
            self.ledger.add(role, tensors, digests, [digest_bytes(value) for value in plain_values])

    def look(self, tensors: Sequence[torch.Tensor]) -> InputEdges:
        """Look at what tensors hold before something other than an op reads or writes them."""
        looked = InputEdges()
        self._look_at_each(tensors, looked)
        return looked

    def hold(self, name: str, tensors: Sequence[torch.Tensor], text: str, generators: Sequence[bytes]) -> int:
        """Record what the program holds; returns the number of the record.

        Args:
            name: The record's name, such as `determinism::step`.
            tensors: The tensors, which hold their data themselves.
            text: Kinds and names of the tensors.
            generators: Digests of the states of generators.
        """
        return self.event(
            Role.STATE, name, tensors, text=text, generators=generators, phase=Phase.OTHER, are_plain=True
        )

    def module_returned(self, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """Record a module call, where no ops are recorded.

        Args:
            name: The record's name, such as `module::Linear`.
            given: The tensors among the arguments.
            made: The tensors in the return value.
        """
        self.run_unrecorded(self.event, Role.MODULE, name, made, given=given, values=True)

    def state_digest(self, generator: torch.Generator) -> bytes:
        """Digest a generator's whole state."""
        return state_digest(generator)

    def are_own(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors are known, without a closer look, to hold their data themselves, in unshared memory."""
        return False

    def _look_at_each(self, tensors: Sequence[torch.Tensor], looked: InputEdges) -> None:
        for tensor in tensors:
            self.edges.look_at(tensor, looked)

    def made(
        self,
        looked: InputEdges,
        tensors: list[torch.Tensor],
        *,
        traits: OpTraits,
        text: str = "",
        generators: Sequence[bytes] = (),
    ) -> None:
        """Record that code unseen by the recorder read what was looked at, and made or wrote these tensors."""
        outputs, states = self.edges.outputs(traits, tensors)
        arguments = self.arguments.text_number(text) if text else -1
        record = self.append(_OP, self.stream.op_number(traits.name), arguments, looked, outputs, generators)
        if self.kept_values is not None:
            self.kept_values.add(self.writer, record, tensors, outputs)
        self.edges.wrote(states, record)

    def _leaf_read(self, tensor: torch.Tensor) -> None:
        is_update = 0 <= self.progress.updates_from <= self.edges.storages.state(tensor).record
        # A backward that recomputes a part of the forward pass makes leaves of its own.
        if is_update and _current_node() is None:
            self.run_unrecorded(self.was_updated)
        if self.progress.phase is Phase.INIT and not self.progress.optimizer_depth:
            self.progress.phase = Phase.FORWARD
        if not isinstance(tensor, torch.nn.Parameter):
            self.held.add_leaf(tensor)

    def updates_itself(self) -> bool:
        """Whether the program updates what it trains without an optimizer."""
        progress = self.progress
        if progress.may_update_itself and progress.num_ended == 0 and has_optimizer():
            progress.optimizer_found()
        return progress.may_update_itself

    def was_updated(self) -> None:
        """Note that the program updated what it trains since a backward; without an optimizer, this ends a step."""
        if self.updates_itself():
            self.progress.updated()

    def _step_ended(self, counted_by: str) -> None:
        self.step_ended(counted_by)
        self._links.age()


class Recorder(RecordMaker):
    """Records the ops of one thread; subclasses define how it observes them."""

    name = "python"
    """How it observes ops, as named in `process.json`."""

    @property
    def is_by_thread(self) -> bool:
        """Whether it must enter a thread to record what happens there."""
        raise NotImplementedError

    def another(self) -> Recorder:
        """Make one of the same kind, for another thread."""
        return type(self)(tracks_ops=self.tracks_ops, paranoid=self.paranoid)

    def stream_of(self, writer: ProcessWriter, devices: DeviceDigests) -> Stream:
        """Make a stream that recorders of this kind share."""
        return Stream(writer, devices)

    def install(self, threads: Threads) -> Undo:
        """Start observing ops in all threads; returns a function that ends it."""
        raise NotImplementedError

    def enter_thread(self) -> None:
        """Start observing ops in the calling thread."""
        raise NotImplementedError

    def leave_thread(self) -> None:
        """Stop observing ops in the calling thread."""
        raise NotImplementedError

    def enter_process(self) -> None:
        """Start observing ops in the main thread, which calls this."""
        self.enter_thread()

    def leave_process(self) -> None:
        """Stop observing ops in the main thread."""
        self.leave_thread()

    def end(self) -> None:
        """End recording for good."""
        self.is_active = False
        self.on_first_op = None

    def kernel_ran(self, traits: OpTraits, args: Any, kwargs: Any, looked: InputEdges) -> None:
        """Record that a kernel of a compiled graph ran; its inputs were looked at before."""
        self._after(traits, self.stream.op_number(traits.name), args, kwargs, looked, None, None)

    def _before(
        self, traits: OpTraits, func: Any, args: Any, kwargs: Any
    ) -> tuple[InputEdges, tuple[torch.Generator, bytes] | None]:
        if self.capture is not None:
            self.capture(self, traits, func, args, kwargs)
        looked = InputEdges() if traits.has_unvalued_inputs else self.edges.look_at_arguments(traits, args, kwargs)
        return looked, self._generator_before(args, kwargs) if traits.draws else None

    def _generator_before(self, args: Any, kwargs: Any) -> tuple[torch.Generator, bytes] | None:
        generator = generator_of(args, kwargs)
        return None if generator is None else (generator, state_digest(generator))

    def _after(
        self, traits: OpTraits, op: int, args: Any, kwargs: Any, looked: InputEdges, generator: Any, result: Any
    ) -> None:
        written = written_tensors(traits, args, kwargs, result)
        has_overlapped = self.edges.has_overlapped(looked, written)
        role = _OP
        states: list[Any] = []
        if written:
            outputs, states = self.edges.outputs(traits, written)
        elif result is None or _is_unread():
            return
        else:
            role = Role.ESCAPE
            outputs = [self.layouts.value_number, digest_text(value_text(result))]
        drawn = (generator[1],) if generator is not None and state_digest(generator[0]) != generator[1] else ()
        arguments = self.arguments.number(op, traits, args, kwargs)
        record = self.append(role, op, arguments, looked, outputs, drawn)
        if has_overlapped:
            self.stream.note_overlap(record)
        if traits.returns_target and args[0]._is_view():
            self._links.wrote_view = self._links.newest
        self.edges.wrote(states, record, is_unwritten=traits.is_uninitialized)
        if self.kept_values is not None:
            self.kept_values.add(self.writer, record, written, outputs)
        if traits.is_lift:
            self.edges.lifted(states, outputs)
        elif traits.is_asynchronous:
            self.edges.in_flight(states)
        if role is not _OP and type(result) is float:
            self.writer.number(Meaning.READ, record, looked.edges, result, self.progress.step)
        if self.capture is not None:
            if written:
                self.edges.remember(written, outputs)
            self.capture.after(self, traits, record, written)
        if traits.asks_for_modes and self.formula_nodes is not None:
            self.formula_nodes.ran_forward(traits, args, looked, record, outputs)

    def _link_view(self) -> None:
        calls = self._calls
        module = calls[-1].link.module if calls else NO_MODULE
        self._links.add(sequence_number(), Link(-1, self.sites.stack(_frame(2), calls), module))


# The edges of a thread other than the main one: what another thread wrote is known only by its digest.


class ThreadEdges(Edges):
    """Tracks which record of its thread wrote which memory.

    Which thread wrote last may vary from run to run. So an edge stays within a thread: memory that another thread may
    have written since is digested when it is read, here and in the main thread.
    """

    def __init__(
        self, stream: Stream, main: StorageTable, leaf_read: Callable[[torch.Tensor], None], *, paranoid: bool
    ) -> None:
        """Make an empty one.

        Args:
            stream: The stream that the threads share.
            main: The storage table of the main thread.
            leaf_read: Called when a leaf that requires a gradient is read.
            paranoid: Digest every input.
        """
        super().__init__(stream, leaf_read, paranoid=paranoid)
        self.main = main
        self._always = paranoid

    def has_overlapped(self, looked: InputEdges, written: list[torch.Tensor]) -> bool:
        """Whether another thread wrote what the op that just ran used, according to its records or to the bytes.

        If two ops write one storage at the same time, the one that ends later sees the other's record.
        """
        for state, writes, known, record in looked.used or ():
            if state.writes != writes or (known is not None and known.record != record):
                return True
        return super().has_overlapped(looked, written)

    def look_at(self, tensor: torch.Tensor, looked: InputEdges, access: int = READ) -> Layout | None:
        """Add the edge from a tensor to the record that wrote its memory; returns the tensor's layout."""
        if is_strided(tensor):
            state = self.storages.state(tensor)
            known = self.main.known(tensor)
            if state.writer is not self or (known is not None and known.record != EXTERNAL):
                state.record = EXTERNAL
            self._paranoid = self._always or state.writer is not self
            self._watches = state.writer is not self
            looked.used = looked.used or []
            looked.used.append((state, state.writes, known, EXTERNAL if known is None else known.record))
        return super().look_at(tensor, looked, access)

    def wrote(self, states: list[StorageState | None], record: int, *, is_unwritten: bool = False) -> None:
        """Note that these storages now hold a record's outputs; the main thread must look at them again."""
        super().wrote(states, record, is_unwritten=is_unwritten)
        for state in states:
            if state is not None:
                state.writer = self
                state.writes += 1
                self.main.written_elsewhere(state.key)


# The recorders of a process: one for the main thread, and one for each other thread while it runs.

_SERVING = ("multiprocessing.queues", "torch.utils.data._utils.pin_memory")
"""Modules whose threads only pass tensors between processes."""
_MOST_NAMES = 256
_MADE_AT = "_determinism_made_at"
_Unknown = threading._DummyThread
"""Represents a thread that Python did not start, once `threading.current_thread` was called in it, as logging does."""
_BEFORE_WINDOW = "it began before the window of steps whose ops are recorded"


class Threads:
    """The recorders of all threads. All threads except the main one share a stream, whose records are unordered."""

    def __init__(self, main: Recorder, open_stream: Callable[[], Stream | None]) -> None:
        """Take the recorder of the calling thread, and the function that opens the stream of all other threads."""
        self.main = main
        self.step_ended: Callable[[Recorder, str], None] = lambda recorder, counted_by: None
        self._open_stream = open_stream
        self._stream: Stream | None = None
        self._names: list[str] = []
        self._made_at: list[str] = []
        self._by_thread: dict[int, Recorder] = {main.thread: main}
        self._lock = threading.Lock()

    @property
    def stream(self) -> Stream | None:
        """The stream of the threads other than the main one; None until one of them records something."""
        return self._stream

    def recorder(self) -> Recorder | None:
        """Return this thread's recorder if it is ready to record; None if nothing is to be recorded now."""
        ident = get_ident()
        recorder = self._by_thread.get(ident)
        if recorder is None:
            if any(thread.ident == ident and type(thread) is not _Unknown for thread in threading.enumerate()):
                return None
            # A thread of the framework works for the main thread.
            recorder = self.main
        return recorder if recorder.is_ready() else None

    def is_alone(self) -> bool:
        """Whether this is the only recorded thread now."""
        return all(ident == get_ident() for ident in list(self._by_thread))

    def install(self) -> Undo:
        """Record every thread that starts from now on; returns a function that ends this."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            target = getattr(thread, "_target", None)
            if getattr(target, "__module__", None) in _SERVING:
                return original(thread)
            if self.main.is_waiting:
                self.main.writer.blind_spot("window-thread", f"thread {thread.name}", _BEFORE_WINDOW)
                return original(thread)
            recorder = self.main.another()
            recorder.on_first_op = self._begin(thread.name, vars(thread).get(_MADE_AT, ""))
            self._by_thread[get_ident()] = recorder
            if recorder.is_by_thread:
                recorder.enter_thread()
            try:
                return original(thread)
            finally:
                if recorder.is_by_thread:
                    recorder.leave_thread()
                self._by_thread.pop(get_ident(), None)

        def made(original: Callable[..., None], thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
            original(thread, *args, **kwargs)
            vars(thread)[_MADE_AT] = frame_text(innermost_user_frame())

        undo_start, undo_making = (
            wrap(threading.Thread, name, wrapper)
            for name, wrapper in (("_bootstrap_inner", around), ("__init__", made))
        )

        def undo() -> None:
            undo_making()
            undo_start()

        return undo

    def _begin(self, name: str, made_at: str) -> Callable[[Recorder], None]:
        def begin(recorder: Recorder) -> None:
            if not self.main.is_ready():
                return
            recorder.on_first_op = None
            with self._lock:
                if self._stream is None:
                    self._stream = self._open_stream()
                stream = self._stream
                if stream is None:
                    return
                number = len(self._names) + 1
                self._names.append(name)
                self._made_at.append(made_at)
                if number <= _MOST_NAMES:
                    stream.writer.describe(
                        threads=self._names[:_MOST_NAMES], threads_made_at=self._made_at[:_MOST_NAMES]
                    )
            self._attach(recorder, stream, number)

        return begin

    def _attach(self, recorder: Recorder, stream: Stream, number: int) -> None:
        main = self.main
        recorder.step_ended = lambda counted_by: self.step_ended(recorder, counted_by)
        recorder.capture = main.capture
        recorder.begin(
            stream,
            number=number,
            edges=lambda leaf_read: ThreadEdges(stream, main.stream.storages, leaf_read, paranoid=recorder.paranoid),
            progress=lambda step_ended: ThreadProgress(main.progress, step_ended),
        )

    def forked(self) -> Recorder:
        """Adjust to a forked child, where only the forking thread survives, as the main one; returns its recorder."""
        main = self._by_thread.get(get_ident())
        if main is None:
            main = self.main.another()
            if main.is_by_thread:
                main.enter_thread()
        self.main = main
        self._by_thread = {get_ident(): main}
        self._stream = None
        self._names = []
        self._lock = threading.Lock()
        return main

    def earlier_threads(self) -> list[str]:
        """Return the names of the program's running threads that have no recorder."""
        return program_threads(self._by_thread)

    def end(self) -> None:
        """Stop recording in every thread, and close the files."""
        began = self.main.is_active
        for recorder in list(self._by_thread.values()):
            recorder.end()
        if self._stream is not None:
            writer = self._stream.writer
            self._stream.describe_overlaps(always=True)
            writer.describe(records=writer.num_records, steps=0)
            writer.close()
        if began:
            self.main.stream.describe_overlaps()
            self.main.writer.close()

"""Turns every op into a record: a dispatch mode that runs the op and writes down what went in and what came out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.torch.arguments import ArgumentTable
from determinism.frameworks.torch.generators import generator_of, state_digest
from determinism.frameworks.torch.held import HeldTensors
from determinism.frameworks.torch.layouts import LayoutTable
from determinism.frameworks.torch.modules import NO_MODULE, ModulePaths
from determinism.frameworks.torch.op_traits import OpTraits, traits_of
from determinism.frameworks.torch.progress import Progress
from determinism.frameworks.torch.storages import EXTERNAL, StorageTable
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.sites import NO_STACK, SiteTable
from determinism.trace.schema import Table
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST, Access, Phase, Role

_current_node = torch._C._current_autograd_node
_sequence_number = torch.autograd._get_sequence_nr
_no_dispatch = torch._C._disabled_torch_dispatch_impl
_MAX_LINKS = 200_000
_READ = int(Access.READ)
_CARRY = int(Access.CARRY)


class _ThreadState(threading.local):
    """What belongs to one thread: its number, and which record made which node of the autograd graph."""

    def __init__(self) -> None:
        self.number = -1
        self.last_sequence = -1
        self.links: dict[int, tuple[int, int, int]] = {}
        self.older_links: dict[int, tuple[int, int, int]] = {}
        self.busy = False


class Recorder(TorchDispatchMode):
    """Records the ops of the threads it was entered in."""

    supports_higher_order_operators = True

    def __init__(self, writer: ProcessWriter, *, tracks_ops: bool = True, paranoid: bool = False) -> None:
        """Take where records go.

        Args:
            writer: Receives the records.
            tracks_ops: Whether ops will be seen; without them nobody knows who wrote a tensor.
            paranoid: Digest every input of every op.
        """
        super().__init__()
        self.writer = writer
        self.tracks_ops = tracks_ops
        self.is_active = True
        self.capture: Callable[[Recorder, OpTraits, Any, Any, Any], None] | None = None
        """Looks at every op before it runs; set in a confirming run."""
        self.storages = StorageTable()
        self.sites = SiteTable(lambda t: writer.name(Table.FRAME, t), lambda t: writer.name(Table.STACK, t))
        self.arguments = ArgumentTable(lambda t: writer.name(Table.ARGUMENTS, t))
        self.layouts = LayoutTable(lambda t: writer.name(Table.LAYOUT, t))
        self.modules = ModulePaths(lambda t: writer.name(Table.MODULE, t))
        self.held = HeldTensors(self.modules)
        self.progress = Progress(self._step_ended)
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.is_saving = 0
        """How many calls of `torch.save` are running."""
        self._paranoid = paranoid
        self._traits: dict[Any, tuple[OpTraits, int]] = {}
        self._op_numbers: dict[str, int] = {}
        self._thread = _ThreadState()
        self._num_threads = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it does without us; what it fuses is a blind spot."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind.__torch_dispatch__ is not _no_dispatch:
                # Wrapper subclasses come again as their inner tensors.
                return NotImplemented
        if not self.is_active or self._thread.busy:
            return func(*args, **kwargs)
        known = self._traits.get(func)
        if known is None:
            known = self._learn(func)
        traits, op = known
        if traits.is_ignored:
            return func(*args, **kwargs)
        if traits.is_view:
            result = func(*args, **kwargs)
            self._link_view()
            return result
        if self.capture is not None:
            self._guarded(self.capture, self, traits, func, args, kwargs)
        before = self._guarded(self._before, traits, args, kwargs)
        result = func(*args, **kwargs)
        if before is not None:
            self._guarded(self._after, traits, op, args, kwargs, before, result)
        return result

    def _guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Never let a failure of ours reach the program: it becomes a blind spot."""
        try:
            return action(*arguments)
        except Exception as error:
            name = next((a.name for a in arguments if isinstance(a, OpTraits)), action.__name__)
            self.writer.blind_spot("handler-failed", name, f"{type(error).__name__}: {error}"[:300])
            return None

    def _learn(self, func: Any) -> tuple[OpTraits, int]:
        if not hasattr(func, "_schema"):
            # A higher-order operator (cond, flex_attention): its inner ops are recorded.
            traits = OpTraits(str(func), True, False, False, False, False, (), False, False, None, (), 0, frozenset(), ())
        else:
            traits = traits_of(func)
        known = self._traits[func] = (traits, self.op_number(traits.name))
        return known

    def op_number(self, name: str) -> int:
        """The number of an op's name."""
        number = self._op_numbers.get(name)
        if number is None:
            number = self._op_numbers[name] = self.writer.name(Table.OP, name)
        return number

    # What is looked at before the op runs

    def _before(self, traits: OpTraits, args: Any, kwargs: Any) -> tuple[list[int], list[tuple[int, bytes]], Any]:
        inputs: list[int] = []
        digests: list[tuple[int, bytes]] = []
        if not traits.has_unvalued_inputs:
            written = traits.written
            for position, value in enumerate(args):
                if position in written:
                    self._look_at_target(traits, value, args, inputs, digests)
                elif isinstance(value, torch.Tensor):
                    self._look_at(value, inputs, digests)
                elif type(value) is list or type(value) is tuple:
                    self._look_at_list(value, inputs, digests)
            for name, value in kwargs.items():
                if name in written:
                    self._look_at_target(traits, value, args, inputs, digests)
                elif isinstance(value, torch.Tensor):
                    self._look_at(value, inputs, digests)
                elif type(value) is list or type(value) is tuple:
                    self._look_at_list(value, inputs, digests)
        generator = None
        if traits.draws and (source := generator_of(args, kwargs)) is not None:
            generator = (source, state_digest(source))
        return inputs, digests, generator

    def _look_at_list(self, values: Any, inputs: list[int], digests: list[tuple[int, bytes]]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self._look_at(value, inputs, digests)

    def _look_at_target(self, traits: OpTraits, value: Any, args: Any, inputs: list[int], digests: Any) -> None:
        reads = traits.reads_written
        if traits.accumulate_at is not None and len(args) > traits.accumulate_at:
            reads = bool(args[traits.accumulate_at])
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            if reads:
                self._look_at(tensor, inputs, digests)
            elif traits.keeps_unwritten or tensor.nbytes != self.storages.state(tensor).size:
                self._look_at(tensor, inputs, digests, _CARRY)

    def _look_at(self, tensor: torch.Tensor, inputs: list[int], digests: list[tuple[int, bytes]], access: int = _READ) -> None:
        """Add the edge from a tensor to the record that wrote its memory."""
        if tensor.layout is not torch.strided:
            digests.append((len(inputs) // 4, digest_tensor(tensor)))
            inputs += (EXTERNAL, 0, access, self.layouts.number(tensor, 0))
            return
        state = self.storages.state(tensor)
        if (state.record == EXTERNAL or state.is_foreign or self._paranoid) and access == _READ:
            digests.append((len(inputs) // 4, digest_tensor(tensor)))
        inputs += (state.record, state.output, access, self.layouts.number(tensor, state.size))
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            self._leaf_read(tensor)

    def _leaf_read(self, tensor: torch.Tensor) -> None:
        if self.progress.phase is Phase.INIT and not self.progress.optimizer_depth:
            self.progress.phase = Phase.FORWARD
        if not isinstance(tensor, torch.nn.Parameter):
            self.held.add_leaf(tensor, lambda: f"tensor of shape {tuple(tensor.shape)}")

    # What is written down after the op ran

    def _after(self, traits: OpTraits, op: int, args: Any, kwargs: Any, before: Any, result: Any) -> None:
        inputs, digests, generator = before
        drawn = [generator[1]] if generator is not None and state_digest(generator[0]) != generator[1] else []
        role = Role.OP
        written = list(self._written(traits, args, kwargs, result))
        outputs: list[tuple[int, bytes]] = []
        for position, tensor in enumerate(written):
            size = self.storages.state(tensor).size if tensor.layout is torch.strided else 0
            is_value = not (traits.is_uninitialized or position in traits.workspaces)
            outputs.append((self.layouts.number(tensor, size), digest_tensor(tensor) if is_value else NO_DIGEST))
        if not written:
            if result is None:
                return
            role = Role.ESCAPE
            outputs.append((self.layouts.value_number, digest_text(repr(result))))
        arguments = self.arguments.number(op, traits.argument_names, args, kwargs)
        record = self._append(role, op, arguments, inputs, digests, outputs, drawn)
        for position, tensor in enumerate(written):
            if tensor.layout is torch.strided:
                self.wrote(tensor, record, position)
                if self.capture is not None:
                    self.remember(tensor, outputs[position][1])

    def wrote(self, tensor: torch.Tensor, record: int, output: int) -> None:
        """From now on a tensor's memory is what a record wrote."""
        state = self.storages.state(tensor)
        state.record, state.output = record, output

    def remember(self, tensor: torch.Tensor, digest: bytes) -> None:
        """Keep what a write left, so that a later look can tell whether somebody else changed it."""
        state = self.storages.state(tensor)
        state.digest = digest
        state.view = (tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype)

    def _written(self, traits: OpTraits, args: Any, kwargs: Any, result: Any) -> Iterator[torch.Tensor]:
        """The tensors that the op wrote, then those it made."""
        seen: set[int] = set()
        targets = [kwargs.get(at) if isinstance(at, str) else args[at] for at in traits.written
                   if isinstance(at, str) or at < len(args)]  # fmt: skip
        if traits.hidden_written and len(args) > traits.hidden_flag and args[traits.hidden_flag]:
            targets += [args[at] for at in traits.hidden_written]
        for value in (*targets, result):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor

    def _append(self, role: Role, op: int, arguments: int, inputs: Any, digests: Any, outputs: Any, drawn: Sequence[bytes]) -> int:
        thread = self._thread
        if thread.number < 0:
            self._number_thread()
        phase, module, forward, forward_stack = self.place()
        stack = self.sites.stack(sys._getframe(3))
        cells = (thread.number, self.progress.step, phase, role, op, module, stack, forward, forward_stack, arguments)
        record = self.writer.append(cells, inputs, digests, outputs, drawn)
        sequence = _sequence_number()
        if sequence != thread.last_sequence:
            self._link(thread, sequence, (record, stack, module))
        return record

    def place(self) -> tuple[Phase, int, int, int]:
        """Phase, module, and for a backward op the record and stack of its forward op."""
        node = _current_node()
        if node is not None:
            forward, forward_stack, module = self.forward_of(node)
            return Phase.BACKWARD, module, forward, forward_stack
        calls = self.modules.calls()
        if calls:
            return Phase.FORWARD, calls[-1][1], -1, NO_STACK
        phase = Phase.OPTIMIZER if self.progress.optimizer_depth else self.progress.phase
        return phase, NO_MODULE, -1, NO_STACK

    def _number_thread(self) -> None:
        self._thread.number = self._num_threads
        self._num_threads += 1

    # From a node of the autograd graph to the record that made it

    def _link(self, thread: _ThreadState, sequence: int, made_by: tuple[int, int, int]) -> None:
        # At dispatch the counter already stands one behind the node that this op belongs to.
        thread.last_sequence = sequence
        thread.links.setdefault(sequence - 1, made_by)
        if len(thread.links) >= _MAX_LINKS:
            thread.older_links, thread.links = thread.links, {}

    def _link_view(self) -> None:
        thread = self._thread
        sequence = _sequence_number()
        if sequence != thread.last_sequence:
            calls = self.modules.calls()
            module = calls[-1][1] if calls else NO_MODULE
            self._link(thread, sequence, (-1, self.sites.stack(sys._getframe(2)), module))

    def forward_of(self, node: Any) -> tuple[int, int, int]:
        """Record, stack and module of the forward op that a node belongs to; -1 each where it is not known."""
        sequence = node._sequence_nr()
        thread = self._thread
        return thread.links.get(sequence) or thread.older_links.get(sequence) or (-1, NO_STACK, NO_MODULE)

    def _step_ended(self, counted_by: str) -> None:
        self.step_ended(counted_by)
        thread = self._thread
        thread.older_links, thread.links = thread.links, {}

    # Records that are no ops

    def event(
        self,
        role: Role,
        name: str,
        tensors: list[torch.Tensor],
        *,
        text: str = "",
        given: Sequence[torch.Tensor] = (),
        values: bool = False,
        plain_values: Sequence[bytes] = (),
        generators: Sequence[bytes] = (),
        phase: Phase | None = None,
    ) -> int:
        """Record that something happened to tensors: an escape, a loss, what is held.

        Args:
            role: What it stands for.
            name: Its name, such as `determinism::tolist`.
            tensors: The tensors concerned.
            text: Kept as the record's arguments.
            given: Tensors that it got, to be digested as its inputs.
            values: Digest the tensors as the record's outputs.
            plain_values: Bytes that stand for values that are no tensors; outputs as well.
            generators: Digests of the states of generators.
            phase: Instead of the current phase.
        """
        inputs: list[int] = []
        digests: list[tuple[int, bytes]] = []
        outputs = []
        for tensor in given:
            digests.append((len(inputs) // 4, digest_tensor(tensor)))
            inputs += (EXTERNAL, 0, _READ, self.layouts.number(tensor, 0))
        for tensor in tensors:
            if self.tracks_ops:
                self._look_at(tensor, inputs, digests)
            if values:
                outputs.append((self.layouts.number(tensor, 0), digest_tensor(tensor)))
        outputs += [(self.layouts.value_number, digest_bytes(value)) for value in plain_values]
        arguments = self.arguments.text_number(text) if text else -1
        with self.in_phase(phase or self.progress.phase):
            return self._append(role, self.op_number(name), arguments, inputs, digests, outputs, generators)

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """Let another phase hold for a while."""
        previous, self.progress.phase = self.progress.phase, phase
        try:
            yield
        finally:
            self.progress.phase = previous

    def quietly(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Do something of ours outside an op: its own ops are not recorded, its failure becomes a blind spot."""
        if not self.is_active or self._thread.busy:
            return None
        self._thread.busy = True
        try:
            return action(*arguments, **keywords)
        except Exception as error:
            self.writer.blind_spot("handler-failed", action.__qualname__, f"{type(error).__name__}: {error}"[:300])
            return None
        finally:
            self._thread.busy = False

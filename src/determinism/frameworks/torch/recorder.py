"""Turns every op into a record: a dispatch mode that runs the op and writes down what went in and what came out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.torch.arguments import ArgumentTable, value_text
from determinism.frameworks.torch.compiler import unwrap_handler
from determinism.frameworks.torch.edges import Edges, Looked, written_tensors
from determinism.frameworks.torch.forward_links import NO_MODULE, NOWHERE, ForwardLinks, Link, sequence_number
from determinism.frameworks.torch.generators import generator_of, state_digest
from determinism.frameworks.torch.held import HeldTensors
from determinism.frameworks.torch.layouts import LayoutTable
from determinism.frameworks.torch.modules import ModulePaths
from determinism.frameworks.torch.op_traits import HIGHER_ORDER, OpTraits, traits_of
from determinism.frameworks.torch.progress import Progress
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.sites import SiteTable
from determinism.trace.schema import Table
from determinism.trace.writer import ProcessWriter
from determinism.types import Phase, Role

_current_node = torch._C._current_autograd_node
_no_dispatch = torch._C._disabled_torch_dispatch_impl
_frame = sys._getframe
_BACKWARD = Phase.BACKWARD
_FORWARD = Phase.FORWARD
_OP = Role.OP


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
        self.is_saving = 0
        """How many calls of `torch.save` are running."""
        self.sites = SiteTable(lambda t: writer.name(Table.FRAME, t), lambda t: writer.name(Table.STACK, t))
        self.arguments = ArgumentTable(lambda t: writer.name(Table.ARGUMENTS, t))
        self.layouts = LayoutTable(lambda t: writer.name(Table.LAYOUT, t))
        self.modules = ModulePaths(lambda t: writer.name(Table.MODULE, t))
        self.held = HeldTensors(self.modules)
        self.edges = Edges(self.layouts, self._leaf_read, paranoid=paranoid)
        self.progress = Progress(self._step_ended)
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self._traits: dict[Any, tuple[OpTraits, int]] = {}
        self._op_numbers: dict[str, int] = {}
        self._links = ForwardLinks()
        self._is_busy = False
        """Something of ours runs outside an op; its ops are not the program's."""
        self._thread = get_ident()
        self._threads = {self._thread: 0}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it does without us; what it fuses is a blind spot."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        for kind in types:
            if kind.__torch_dispatch__ is not _no_dispatch:
                # Wrapper subclasses come again as their inner tensors; tensors of a compiler hold no values.
                return func(*args, **kwargs) if kind.__module__.startswith("torch._subclasses.") else NotImplemented
        if not self.is_active or self._is_busy:
            return func(*args, **kwargs)
        traits, op = self._traits.get(func) or self._learn(func)
        if traits.is_ignored:
            return func(*args, **kwargs)
        if traits.is_view:
            result = func(*args, **kwargs)
            if sequence_number() != self._links.last and get_ident() == self._thread:
                self._link_view()
            return result
        try:
            if self.capture is not None:
                self.capture(self, traits, func, args, kwargs)
            looked = Looked() if traits.has_unvalued_inputs else self.edges.look_at_arguments(traits, args, kwargs)
            generator = self._generator_before(args, kwargs) if traits.draws else None
        except Exception as error:
            self._failed(traits.name, error)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            self._after(traits, op, args, kwargs, looked, generator, result)
        except Exception as error:
            self._failed(traits.name, error)
        return result

    def _failed(self, what: str, error: Exception) -> None:
        """A failure of ours never reaches the program: it becomes a blind spot."""
        self.writer.blind_spot("handler-failed", what, f"{type(error).__name__}: {error}"[:300])

    def _learn(self, func: Any) -> tuple[OpTraits, int]:
        # A higher-order operator (cond, flex_attention) has no schema; its inner ops are recorded.
        traits = traits_of(func) if hasattr(func, "_schema") else HIGHER_ORDER
        known = self._traits[func] = (traits, self.op_number(traits.name))
        return known

    def op_number(self, name: str) -> int:
        """The number of an op's name."""
        number = self._op_numbers.get(name)
        if number is None:
            number = self._op_numbers[name] = self.writer.name(Table.OP, name)
        return number

    def _generator_before(self, args: Any, kwargs: Any) -> tuple[torch.Generator, bytes] | None:
        generator = generator_of(args, kwargs)
        return None if generator is None else (generator, state_digest(generator))

    def _leaf_read(self, tensor: torch.Tensor) -> None:
        if self.progress.phase is Phase.INIT and not self.progress.optimizer_depth:
            self.progress.phase = Phase.FORWARD
        if not isinstance(tensor, torch.nn.Parameter):
            self.held.add_leaf(tensor, lambda: f"tensor of shape {tuple(tensor.shape)}")

    def _after(
        self, traits: OpTraits, op: int, args: Any, kwargs: Any, looked: Looked, generator: Any, result: Any
    ) -> None:
        written = written_tensors(traits, args, kwargs, result)
        role = _OP
        states: list[Any] = []
        if written:
            outputs, states = self.edges.outputs(traits, written)
        elif result is None:
            return
        else:
            role = Role.ESCAPE
            outputs = [(self.layouts.value_number, digest_text(value_text(result)))]
        drawn = (generator[1],) if generator is not None and state_digest(generator[0]) != generator[1] else ()
        arguments = self.arguments.number(op, traits, args, kwargs)
        record = self._append(role, op, arguments, looked, outputs, drawn)
        if traits.returns_target and args[0]._is_view():
            self._links.wrote_view = self._links.newest
        self.edges.wrote(states, record)
        if traits.is_lift:
            self.edges.lifted(states, outputs)
        elif traits.is_collective:
            self.edges.in_flight(states)
        if self.capture is not None:
            self.edges.remember(written, outputs)

    def _append(
        self, role: Role, op: int, arguments: int, looked: Looked, outputs: Any, generators: Sequence[bytes]
    ) -> int:
        ident = get_ident()
        # The backward of a GPU runs in a thread of the framework, with the mode of the thread that called it.
        thread = 0 if ident == self._thread else self._threads.setdefault(ident, len(self._threads))
        phase, link = self.place()
        stack = self.sites.stack(_frame(3))
        cells = (thread, self.progress.step, phase, role, op, link.module, stack, link.record, link.stack, arguments)
        record = self.writer.append(cells, looked.edges, looked.digests, outputs, generators)
        if not thread and (sequence := sequence_number()) != self._links.last:
            self._links.add(sequence, Link(record, stack, link.module))
        return record

    def place(self) -> tuple[Phase, Link]:
        """The phase; for a backward op its forward op and that op's module, else the module being called."""
        node = _current_node()
        if node is not None:
            return _BACKWARD, self._links.of(node._sequence_nr())
        calls = self.modules.calls
        if calls:
            return _FORWARD, calls[-1].link
        return (Phase.OPTIMIZER if self.progress.optimizer_depth else self.progress.phase), NOWHERE

    def _link_view(self) -> None:
        calls = self.modules.calls
        module = calls[-1].link.module if calls else NO_MODULE
        self._links.add(sequence_number(), Link(-1, self.sites.stack(_frame(2)), module))

    def _step_ended(self, counted_by: str) -> None:
        self.step_ended(counted_by)
        self._links.age()

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
        looked = Looked()
        for tensor in given:
            self.edges.look_at_value(tensor, looked)
        for tensor in tensors if self.tracks_ops else ():
            self.edges.look_at(tensor, looked)
        outputs = [(self.layouts.number(tensor, 0), digest_tensor(tensor)) for tensor in tensors] if values else []
        outputs += [(self.layouts.value_number, digest_bytes(value)) for value in plain_values]
        arguments = self.arguments.text_number(text) if text else -1
        with self.in_phase(phase or self.progress.phase):
            return self._append(role, self.op_number(name), arguments, looked, outputs, generators)

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
        if not self.is_active or self._is_busy:
            return None
        self._is_busy = True
        try:
            return action(*arguments, **keywords)
        except Exception as error:
            self._failed(getattr(action, "__qualname__", repr(action)), error)
            return None
        finally:
            self._is_busy = False


unwrap_handler(Recorder)

"""Makes the records of one thread: of ops, and of what happens to tensors besides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch

from determinism.digest import digest_bytes
from determinism.frameworks.attention import Attention
from determinism.frameworks.progress import Progress
from determinism.frameworks.torch.edges import Edges, Looked
from determinism.frameworks.torch.formula_nodes import FormulaNodes
from determinism.frameworks.torch.forward_links import NOWHERE, ForwardLinks, Link, sequence_number
from determinism.frameworks.torch.held import HeldTensors
from determinism.frameworks.torch.kept_values import KeptValues
from determinism.frameworks.torch.look import Look
from determinism.frameworks.torch.modules import ModulePaths
from determinism.frameworks.torch.op_traits import OPAQUE, OpTraits
from determinism.frameworks.torch.stream import Stream
from determinism.frameworks.torch.tensor_bytes import plain_parts
from determinism.types import Phase, Role

num_function_modes = torch._C._len_torch_function_stack
_current_node = torch._C._current_autograd_node
_frame = sys._getframe
_BACKWARD = Phase.BACKWARD
_FORWARD = Phase.FORWARD
_OP = Role.OP


class RecordMaker(Attention):
    """Knows where a thread stands, and writes down what it did there."""

    def __init__(self, *, tracks_ops: bool = True, paranoid: bool = False) -> None:
        """Make one that sleeps until `begin`.

        Args:
            tracks_ops: Whether ops will be seen; without them nobody knows who wrote a tensor.
            paranoid: Digest every input of every op.
        """
        super().__init__()
        self.tracks_ops = tracks_ops
        self.paranoid = paranoid
        self.capture: Look | None = None
        """Looks at every op before it runs, and at every event; set in a confirming run, and where rows are looked at."""
        self.kept_values: KeptValues | None = None
        """Keeps elements of what records give, where that was asked for."""
        self.saving: list[torch.Tensor] | None = None
        """What the call of `torch.save` that runs has saved so far; None if none does."""
        self.graph_depth = 0
        """How many calls of compiled graphs are running."""
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.thread = get_ident()

    def quietly(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Do something of ours outside an op; function modes of the program do not see what we ask tensors."""
        if not num_function_modes():
            return super().quietly(action, *arguments, **keywords)
        with torch._C.DisableTorchFunction():
            return super().quietly(action, *arguments, **keywords)

    def begin(
        self,
        stream: Stream,
        *,
        number: int = 0,
        edges: Callable[[Callable[[torch.Tensor], None]], Edges] | None = None,
        progress: Callable[[Callable[[str], None]], Progress] = Progress,
    ) -> None:
        """Record into a stream from now on; what was recorded before is forgotten.

        Args:
            stream: Takes the records.
            number: Which thread of the stream this is.
            edges: Makes what knows who wrote a tensor, given what is to be called when a leaf is read.
            progress: Makes what knows the step, given what is to be called when one ends.
        """
        self.stream = stream
        self.writer = stream.writer
        self.sites = stream.sites
        self.arguments = stream.arguments
        self.layouts = stream.layouts
        self.modules = ModulePaths(stream.module_number)
        self.held = HeldTensors(self.modules)
        self.edges = edges(self._leaf_read) if edges else Edges(stream, self._leaf_read, paranoid=self.paranoid)
        self.progress = progress(self._step_ended)
        self._known: dict[int, tuple[OpTraits, int, Any, Any]] = {}
        """By the id of an op: its traits, its number, what runs it, and itself, so that the id stays its own."""
        self._calls = self.modules.calls
        self._links = ForwardLinks()
        self.formula_nodes = FormulaNodes(self)
        self.number = number
        self._helpers: dict[int, int] = {}
        self.wake = None
        self.is_active = True

    def append(
        self, role: Role, op: int, arguments: int, looked: Looked, outputs: Any, generators: Sequence[bytes]
    ) -> int:
        """Add a record; returns its number."""
        is_own = (ident := get_ident()) == self.thread
        # The backward of a GPU runs in a thread of the framework, with the mode of the thread that called it.
        thread = self.number if is_own else self._helpers.setdefault(ident, self.number + 1 + len(self._helpers))
        phase, link = self.place()
        stack = self.sites.stack(_frame(3), self._calls)
        cells = (thread, self.progress.step, phase, role, op, link.module, stack, link.record, link.stack, arguments)
        record = self.writer.append(cells, looked.edges, looked.digests, outputs, generators)
        if is_own and (sequence := sequence_number()) != self._links.last:
            self._links.add(sequence, Link(record, stack, link.module))
        return record

    def place(self) -> tuple[Phase, Link]:
        """The phase; for a backward op its forward op and that op's module, else the module being called."""
        node = _current_node()
        if node is not None:
            if self.formula_nodes.has_any:
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
        tensors = [part for tensor in tensors for part in plain_parts(tensor)]
        for part in (part for tensor in given for part in plain_parts(tensor)):
            self.edges.look_at_value(part, looked)
        for tensor in tensors if self.tracks_ops else ():
            self.edges.look_at(tensor, looked)
        outputs: list[Any] = []
        for tensor, digest in zip(tensors, self.stream.digests.of_each(tensors), strict=True) if values else ():
            outputs += (self.layouts.number_without_storage(tensor), digest)
        for value in plain_values:
            outputs += (self.layouts.value_number, digest_bytes(value))
        arguments = self.arguments.text_number(text) if text else -1
        with self.progress.in_phase(phase or self.progress.phase):
            if self.capture is not None:
                self.capture.event(self, name, tensors)
            record = self.append(role, self.stream.op_number(name), arguments, looked, outputs, generators)
        if self.kept_values is not None and values:
            self.kept_values.add(self.writer, record, tensors, outputs)
        return record

    def look(self, tensors: Sequence[torch.Tensor]) -> Looked:
        """What some tensors hold, before something that is no op reads or writes them."""
        looked = Looked()
        for tensor in tensors:
            self.edges.look_at(tensor, looked)
        return looked

    def made(
        self,
        name: str,
        looked: Looked,
        tensors: list[torch.Tensor],
        *,
        text: str,
        generators: Sequence[bytes] = (),
    ) -> None:
        """Record that something that is no op read what was looked at, and left these tensors."""
        outputs, states = self.edges.outputs(OPAQUE, tensors)
        arguments = self.arguments.text_number(text)
        record = self.append(_OP, self.stream.op_number(name), arguments, looked, outputs, generators)
        if self.kept_values is not None:
            self.kept_values.add(self.writer, record, tensors, outputs)
        self.edges.wrote(states, record)

    def _leaf_read(self, tensor: torch.Tensor) -> None:
        if self.progress.phase is Phase.INIT and not self.progress.optimizer_depth:
            self.progress.phase = Phase.FORWARD
        if not isinstance(tensor, torch.nn.Parameter):
            self.held.add_leaf(tensor, lambda: f"tensor of shape {tuple(tensor.shape)}")

    def _step_ended(self, counted_by: str) -> None:
        self.step_ended(counted_by)
        self._links.age()

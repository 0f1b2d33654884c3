"""Turns every op into a record: a dispatch mode that runs the op and writes down what went in and what came out."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from determinism.digest import digest_text
from determinism.frameworks.torch.arguments import value_text
from determinism.frameworks.torch.compiler import unwrap_handler
from determinism.frameworks.torch.edges import Looked, written_tensors
from determinism.frameworks.torch.forward_links import NO_MODULE, Link, sequence_number
from determinism.frameworks.torch.generators import generator_of, state_digest
from determinism.frameworks.torch.late_copies import as_called
from determinism.frameworks.torch.op_traits import HIGHER_ORDER, OpTraits, traits_of
from determinism.frameworks.torch.record_maker import RecordMaker, num_function_modes
from determinism.frameworks.torch.settings_inside import run_with_settings, runner_of
from determinism.trace.schema import Meaning
from determinism.types import Role

_no_dispatch = torch._C._disabled_torch_dispatch_impl
_frame = sys._getframe
_OP = Role.OP


class Recorder(RecordMaker, TorchDispatchMode):
    """Records the ops of one thread."""

    supports_higher_order_operators = True

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
        if (not self.is_active or self._is_busy) and not self.is_ready():
            return func(*args, **kwargs)
        traits, op, run, _ = self._known.get(id(func)) or self._learn(func)
        if traits.is_ignored:
            return run(*args, **kwargs)
        if traits.is_view_or_copy:
            if traits.is_view:
                result = run(*args, **kwargs)
                if sequence_number() != self._links.last and get_ident() == self.thread:
                    self._link_view()
                return result
            traits = as_called(traits, args, kwargs)
        has_modes = num_function_modes()
        try:
            if has_modes:
                with torch._C.DisableTorchFunction():
                    looked, generator = self._before(traits, func, args, kwargs)
            else:
                looked, generator = self._before(traits, func, args, kwargs)
        except Exception as error:
            self.failed(traits.name, error)
            return run(*args, **kwargs)
        result = run_with_settings(self.writer, func, args, kwargs) if traits.needs_settings else run(*args, **kwargs)
        try:
            if has_modes:
                with torch._C.DisableTorchFunction():
                    self._after(traits, op, args, kwargs, looked, generator, result)
            else:
                self._after(traits, op, args, kwargs, looked, generator, result)
        except Exception as error:
            self.failed(traits.name, error)
        return result

    def _learn(self, func: Any) -> tuple[OpTraits, int, Any, Any]:
        # A higher-order operator (cond, flex_attention) has no schema; its inner ops are recorded.
        traits = traits_of(func) if hasattr(func, "_schema") else HIGHER_ORDER
        known = self._known[id(func)] = (traits, self.stream.op_number(traits.name), runner_of(func), func)
        return known

    def _before(
        self, traits: OpTraits, func: Any, args: Any, kwargs: Any
    ) -> tuple[Looked, tuple[torch.Generator, bytes] | None]:
        if self.capture is not None:
            self.capture(self, traits, func, args, kwargs)
        looked = Looked() if traits.has_unvalued_inputs else self.edges.look_at_arguments(traits, args, kwargs)
        return looked, self._generator_before(args, kwargs) if traits.draws else None

    def _generator_before(self, args: Any, kwargs: Any) -> tuple[torch.Generator, bytes] | None:
        generator = generator_of(args, kwargs)
        return None if generator is None else (generator, state_digest(generator))

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
            outputs = [self.layouts.value_number, digest_text(value_text(result))]
        drawn = (generator[1],) if generator is not None and state_digest(generator[0]) != generator[1] else ()
        arguments = self.arguments.number(op, traits, args, kwargs)
        record = self.append(role, op, arguments, looked, outputs, drawn)
        if traits.returns_target and args[0]._is_view():
            self._links.wrote_view = self._links.newest
        self.edges.wrote(states, record)
        if self.kept_values is not None:
            self.kept_values.add(self.writer, record, written, outputs)
        if traits.is_lift:
            self.edges.lifted(states, outputs)
        elif traits.is_collective:
            self.edges.in_flight(states)
        if role is not _OP and type(result) is float:
            self.writer.number(Meaning.READ, record, looked.edges, result, self.progress.step)
        if self.capture is not None:
            if written:
                self.edges.remember(written, outputs)
            self.capture.after(self, traits, record, written)
        if traits.asks_for_modes:
            self.formula_nodes.ran_forward(traits, args, looked, record, outputs)

    def _link_view(self) -> None:
        calls = self._calls
        module = calls[-1].link.module if calls else NO_MODULE
        self._links.add(sequence_number(), Link(-1, self.sites.stack(_frame(2), calls), module))


unwrap_handler(Recorder)

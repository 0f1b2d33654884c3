"""Records as a dispatch mode, and makes the backward of some ops take the same formula as without a mode.

The nodes of the autograd graph that check for modes are known (`formulas.toml`). While such a node runs, the recorder
is off the mode stack. So the program keeps its bits, and the node becomes one record: its inputs, what the forward op
had read and made, and the resulting gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from determinism.frameworks.torch.edges import EXTERNAL, InputEdges, Stream
from determinism.frameworks.torch.modules import sequence_number
from determinism.frameworks.torch.ops import (
    HIGHER_ORDER,
    OpTraits,
    as_called,
    formulas_of,
    run_with_settings,
    runner_of,
    traits_of,
    unwrap_handler,
)
from determinism.frameworks.torch.recorder import (
    Recorder,
    RecordMaker,
    Threads,
    num_dispatch_modes,
    num_function_modes,
)
from determinism.frameworks.wrapping import Undo, wrap
from determinism.types import Role

_no_dispatch = torch._C._disabled_torch_dispatch_impl
_dispatch_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""The dtype of the tensor that represents a Python number."""


_MOST_REMEMBERED = 20_000
_mode_at = torch._C._get_dispatch_stack_at
_forward_mode = torch.autograd.forward_ad
_default_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
"""Missing in PyTorch 2.6, which does not expose the current hooks."""
_can_ignore_compile_internals = hasattr(_python_dispatch, "is_in_any_mode_without_ignore_compile_internals")
_functorch_is_active = torch._C._are_functorch_transforms_active

_VIEW_WRITE = "torch::autograd::CopySlices"
"""The node that wraps the node of an op that wrote into a view."""
_REASON = (
    "it uses a different formula while it is recorded, so its bits can differ from those of the unrecorded program"
)


class FormulaNodes:
    """The nodes of one recording whose formulas depend on modes."""

    def __init__(self, recorder: RecordMaker) -> None:
        self.recorder = recorder
        self.has_any = False
        """Whether an op with such a node as its backward has run."""
        self._formulas = formulas_of(torch.__version__)
        self._read: dict[int, InputEdges] = {}
        """By the number of a node: what its formula may read besides the gradients."""
        self._view_writes: set[int] = set()
        """Numbers of the `CopySlices` nodes of writes into views."""
        self._settled: set[int] = set()
        """Numbers of the nodes in the running backward that give the same results as without recording."""
        self._counted = -1
        if recorder.tracks_ops and not self._formulas.is_audited:
            recorder.writer.blind_spot(
                "formulas-unaudited",
                f"PyTorch {torch.__version__}",
                "which formulas change under recording was not audited for this version; the findings for "
                f"{self._formulas.audited} are used",
            )

    def ran_forward(self, traits: OpTraits, args: Any, looked: InputEdges, record: int, outputs: list[Any]) -> None:
        """Note that an op ran whose backward may be such a node."""
        if _forward_mode._current_level >= 0 and traits.name.partition(".")[0] in self._formulas.forward_mode:
            self._count(f"forward-mode derivative of {traits.name}")
        if not (traits.has_formula_node and torch.is_grad_enabled() and any(map(_requires_grad, args))):
            return
        self.has_any = True
        # Hooks that unpack saved tensors can run any code, which must be seen: checkpointing runs ops again.
        if _default_saving_hooks is not None and _default_saving_hooks(True) is None:
            number = sequence_number() - 1
            is_view_write = traits.returns_target and args[0]._is_view()
            if is_view_write:
                self._view_writes.add(number + 1)
            self.remember(range(number, number + 1 + is_view_write), looked.with_outputs(record, outputs))

    def remember(self, numbers: range, read: InputEdges) -> None:
        """Note that these nodes read only this and their gradients."""
        # Each thread of the engine has its own node counter.
        for number in numbers if get_ident() == self.recorder.thread else ():
            self._read.setdefault(number, read)
        while len(self._read) > _MOST_REMEMBERED:
            oldest = next(iter(self._read))
            del self._read[oldest]
            self._view_writes.discard(oldest)

    def saw(self, node: Any) -> None:
        """Note that an op of a node was recorded, so a mode was active."""
        number = node._sequence_nr()
        if number != self._counted and number not in self._settled and self._depends_on_modes(node):
            self._counted = number
            self._count(f"backward of {_short_name(node)}")

    def _depends_on_modes(self, node: Any) -> bool:
        name = node.name()
        return node._sequence_nr() in self._view_writes if name == _VIEW_WRITE else name in self._formulas.nodes

    def _count(self, what: str) -> None:
        self.recorder.writer.blind_spot("formula-changed", what, _REASON)

    def run_backward(self, run: Any, roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Run a graph; each of its nodes that depends on modes runs without the recorder.

        Args:
            run: The engine's function.
            roots: Where the graph begins.
            *args: Further arguments of the engine.
            **kwargs: Likewise.
        """
        if not self._read:
            return run(roots, *args, **kwargs)
        nodes = self.recorder.run_unrecorded(self._nodes_of, roots) or []
        turns = [_Turn(self, node, read) for node, read in nodes]
        numbers = {node._sequence_nr() for node, _ in nodes}
        self._settled |= numbers
        try:
            return run(roots, *args, **kwargs)
        finally:
            for turn in turns:
                turn.end()
            self._settled -= numbers

    def _nodes_of(self, roots: Sequence[Any]) -> list[tuple[Any, InputEdges]]:
        """Find the nodes of a graph that would take another formula, and what each of them may read."""
        found = []
        for node in nodes_below(roots):
            read = self._read.get(node._sequence_nr())
            if read is not None and self._depends_on_modes(node):
                found.append((node, read))
        return found


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def nodes_below(roots: Sequence[Any]) -> Iterator[Any]:
    """Yield every node of a graph once.

    Args:
        roots: Tensors or edges, as the engine takes them.
    """
    pending = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    met = set()
    while pending:
        node = pending.pop()
        if node is None or node in met:
            continue
        met.add(node)
        pending += [following for following, _ in node.next_functions]
        yield node


def install(threads: Threads) -> Undo:
    """Look at every graph before the engine runs it, from now on; returns a function that ends this."""

    def around(run: Any, roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is None or recorder.formula_nodes is None:
            return run(roots, *args, **kwargs)
        return recorder.formula_nodes.run_backward(run, roots, *args, **kwargs)

    return wrap(torch.autograd, "_engine_run_backward", around)


def _short_name(node: Any) -> str:
    return str(node.name().rpartition("::")[2])


class _Turn:
    """One node during one backward."""

    def __init__(self, nodes: FormulaNodes, node: Any, read: InputEdges) -> None:
        self._nodes = nodes
        self._recorder = nodes.recorder
        self._node = node
        self._traits = replace(HIGHER_ORDER, name=f"autograd::{_short_name(node)}")
        self._read = read
        self._looked: InputEdges | None = None
        self._mode: Any = None
        self._thread = 0
        self._first_made = 0
        after = node.register_hook(self._after)
        hooks = after.hooks_dict_ref()
        # Moved first, so that the other hooks run after recording has resumed.
        for key in [key for key in hooks if key != after.id]:
            hooks[key] = hooks.pop(key)
        self._handles = (node.register_prehook(self._before), after)

    def _before(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        recorder = self._recorder
        if num_dispatch_modes() != 1 or _mode_at(0) is not recorder or _functorch_is_active():
            # Even without the recorder, the formula would be the other one.
            return
        self._looked = recorder.run_unrecorded(self._look, gradients)
        self._thread = get_ident()
        self._first_made = sequence_number()
        self._mode = _pop_mode()
        if recorder.capture is not None:
            recorder.run_unrecorded(recorder.capture, recorder, self._traits, self._node, gradients, {})

    def _after(self, made: tuple[torch.Tensor | None, ...], gradients: tuple[torch.Tensor | None, ...]) -> None:
        if self._mode is None:
            return
        self._put_back()
        if self._looked is not None:
            tensors = [tensor for tensor in made if tensor is not None]
            self._recorder.run_unrecorded(self._record, self._looked, tensors)

    def _record(self, looked: InputEdges, made: list[torch.Tensor]) -> None:
        recorder = self._recorder
        outputs, states = recorder.edges.outputs(self._traits, made)
        made_nodes = range(self._first_made, sequence_number())
        record = recorder.append(Role.OP, recorder.stream.op_number(self._traits.name), -1, looked, outputs, ())
        # A gradient that was passed through unchanged keeps its producer.
        recorder.edges.wrote([s if s is not None and s.record == EXTERNAL else None for s in states], record)
        # With `create_graph` the formula itself has a backward, whose nodes may depend on modes, too.
        self._nodes.remember(made_nodes, looked.with_outputs(record, outputs))
        if recorder.capture is not None:
            recorder.edges.remember(made, outputs)

    def _look(self, gradients: tuple[torch.Tensor | None, ...]) -> InputEdges:
        looked = InputEdges()
        for gradient in gradients:
            if gradient is not None:
                self._recorder.edges.look_at(gradient, looked)
        looked.extend(self._read)
        return looked

    def _put_back(self) -> None:
        mode, self._mode = self._mode, None
        _push_mode(mode)

    def end(self) -> None:
        """Clean up after the engine is done; if the node failed, its second hook never ran."""
        for handle in self._handles:
            handle.remove()
        # The engine restores the modes that it began with; a version that does not would end the recording.
        if self._mode is not None and self._thread == get_ident() and not num_dispatch_modes():
            self._put_back()


# The mode itself.


def _computes_no_values() -> bool:
    """Whether ops currently make tensors without values, because a compiler or an exporter traces the program."""
    return _dispatch_mode(_FAKE) is not None or _dispatch_mode(_FUNCTIONAL) is not None


def _run(run: Any, func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return run(*args, **kwargs)
    except RuntimeError as error:
        if not _lost_a_number(error):
            raise
    return run(*_with_tensors(func, args), **kwargs)


def _lost_a_number(error: RuntimeError) -> bool:
    """Whether an op rejected a Python number where its schema requires a tensor.

    A tensor that represents a number of the program, as in traced graphs, is passed to modes as that number.
    Only some ops accept it.
    """
    text = str(error)
    return "Expected a value of type 'Tensor' for argument" in text and "Unable to cast" in text


def _with_tensors(func: Any, args: Any) -> list[Any]:
    return [
        torch.scalar_tensor(value, dtype=_NUMBERS[type(value)])
        if type(value) in _NUMBERS and isinstance(argument.type, torch.TensorType)
        else value
        for value, argument in zip(args, func._schema.arguments, strict=False)
    ]


class ModeRecorder(Recorder, TorchDispatchMode):
    """Observes ops as a dispatch mode."""

    supports_higher_order_operators = True
    _own_modes = 1

    @property
    def is_by_thread(self) -> bool:
        """See `Recorder.is_by_thread`; a mode is needed only if ops are recorded."""
        return self.tracks_ops

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as without this mode; what it fuses is a blind spot."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Pass as one of PyTorch's own modes before 2.10, which compiles nothing under any other mode."""
        return not _can_ignore_compile_internals

    def begin(self, stream: Stream, **keywords: Any) -> None:
        """Record into a stream from now on; see `RecordMaker.begin`."""
        super().begin(stream, **keywords)
        self.formula_nodes = FormulaNodes(self)

    def install(self, threads: Threads) -> Undo:
        """Let some nodes run without a mode; returns a function that ends this. Threads enter the mode one by one."""
        return install(threads)

    def enter_thread(self) -> None:
        """Start observing ops in the calling thread."""
        _push_mode(self)

    def leave_thread(self) -> None:
        """Stop observing ops in the calling thread."""
        _pop_mode()

    def enter_process(self) -> None:
        """Start observing ops in the main thread, which calls this."""
        self.__enter__()

    def leave_process(self) -> None:
        """Stop observing ops in the main thread."""
        self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        for kind in types:
            if kind.__torch_dispatch__ is not _no_dispatch:
                # Wrapper subclasses dispatch again with their inner tensors; a compiler's tensors hold no values.
                return func(*args, **kwargs) if kind.__module__.startswith("torch._subclasses.") else NotImplemented
        if (not self.is_active or self._is_busy) and not self.is_ready():
            return _run(func, func, args, kwargs)
        has_dispatch_modes = num_dispatch_modes()
        if has_dispatch_modes and _computes_no_values():
            return func(*args, **kwargs)
        traits, op, run, _ = self._known.get(id(func)) or self._learn(func)
        if traits.is_ignored:
            return _run(run, func, args, kwargs)
        if traits.is_view_or_copy:
            if traits.is_view:
                result = _run(run, func, args, kwargs)
                if sequence_number() != self._links.last and get_ident() == self.thread:
                    self._link_view()
                return result
            traits = as_called(traits, args, kwargs)
        has_modes = has_dispatch_modes or num_function_modes()
        try:
            if has_modes:
                with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                    looked, generator = self._before(traits, func, args, kwargs)
            else:
                looked, generator = self._before(traits, func, args, kwargs)
        except Exception as error:
            self.failed(traits.name, error)
            return _run(run, func, args, kwargs)
        if traits.needs_settings:
            result = run_with_settings(self.writer, func, args, kwargs)
        else:
            try:
                result = run(*args, **kwargs)
            except RuntimeError as error:
                if not _lost_a_number(error):
                    raise
                result = run(*_with_tensors(func, args), **kwargs)
        try:
            if has_modes:
                with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                    self._after(traits, op, args, kwargs, looked, generator, result)
            else:
                self._after(traits, op, args, kwargs, looked, generator, result)
        except Exception as error:
            self.failed(traits.name, error)
        return result

    def was_updated(self) -> None:
        """See `RecordMaker.was_updated`."""
        # The op that reads what was updated already has its node, which must not be linked to the step-end records.
        links, self._links = self._links, self._new_links()
        try:
            super().was_updated()
        finally:
            self._links = links

    def _learn(self, func: Any) -> tuple[OpTraits, int, Any, Any]:
        # A higher-order operator (cond, flex_attention) has no schema; its inner ops are recorded.
        traits = traits_of(func) if hasattr(func, "_schema") else HIGHER_ORDER
        known = self._known[id(func)] = (traits, self.stream.op_number(traits.name), runner_of(func), func)
        return known


unwrap_handler(ModeRecorder)

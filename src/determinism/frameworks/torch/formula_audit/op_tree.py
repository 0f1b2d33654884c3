"""Which ops ran, as the profiler saw them: it sees those that no mode sees, and sees them without a mode, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.autograd.profiler import profile

_HANDLER = "PythonDispatchMode"
_EVALUATION = "autograd::engine::evaluate_function: "
_MOVES = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize",
    "as_strided", "alias", "detach", "set_", "set", "view", "reshape", "_reshape_alias", "_unsafe_view", "expand",
    "unsqueeze", "squeeze", "narrow", "slice", "select", "transpose", "permute", "t", "mT", "mH", "numpy_T",
    "adjoint", "diagonal", "split", "chunk", "unbind", "flatten", "unflatten", "movedim", "contiguous", "clone",
    "copy", "to", "lift_fresh", "stack", "cat", "broadcast_tensors", "view_as", "expand_as", "zeros", "zeros_like",
    "new_zeros", "zero", "ones", "ones_like", "new_ones", "full", "full_like", "fill", "scalar_tensor",
    "resolve_conj", "resolve_neg", "conj", "_conj", "_conj_physical", "real", "imag", "view_as_real",
    "view_as_complex", "item", "_local_scalar_dense", "diagonal_scatter", "select_scatter", "slice_scatter",
    "is_nonzero", "result_type", "_efficientzerotensor", "_linalg_check_errors", "index_put_", "_to_copy",
}  # fmt: skip
"""Ops that make, move, convert, look at or fill memory and compute nothing."""
_SAME = {
    "_index_put_impl": "index_put",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
}


@dataclass
class Ran:
    """An op, a node or another stretch of work, with what ran inside."""

    name: str
    inside: list[Ran] = field(default_factory=list)

    def walk(self) -> Iterator[Ran]:
        """All that ran inside, in order, outer before inner."""
        for ran in self.inside:
            yield ran
            yield from ran.walk()

    def computed(self) -> list[str]:
        """The innermost ops that compute something; an op in place counts as its other form."""
        found = [name for ran in self.inside for name in ran.computed()]
        name = _plain_name(self.name)
        return found or ([name] if name and name not in _MOVES else [])

    def shape(self) -> Any:
        """Everything inside, to be compared."""
        return (self.name, [ran.shape() for ran in self.inside])


def observe_ops(run: Callable[[], Any]) -> Ran:
    """Run something under the profiler."""
    with profile(use_cpu=True) as profiler:
        run()
    root = Ran("")
    events = [(e.start_ns(), -e.end_ns(), e.name()) for e in profiler.kineto_results.events()]
    open_until: list[tuple[int, Ran]] = [(1 << 80, root)]
    for start, negative_end, name in sorted(events):
        while open_until[-1][0] < -negative_end or open_until[-1][0] <= start:
            open_until.pop()
        ran = Ran(name)
        open_until[-1][1].inside.append(ran)
        open_until.append((-negative_end, ran))
    return root


def without_handlers(ran: Ran) -> Ran:
    """The same with the op called from a handler in the place of the handler, as if there were no mode."""
    inside: list[Ran] = []
    for inner in ran.inside:
        if inner.name in ("detach", "aten::detach"):
            # A mode sees how saved tensors are detached.
            continue
        if inner.name == _HANDLER:
            for called in inner.inside:
                again = without_handlers(called)
                inside += again.inside if called.name == ran.name else [again]
        else:
            inside.append(without_handlers(inner))
    return Ran(ran.name, inside)


def dispatched(ran: Ran) -> set[str]:
    """Names of the ops that a mode's handler was called for."""
    return {op.name for op in ran.walk() if any(inner.name == _HANDLER for inner in op.inside)}


def nodes(ran: Ran) -> dict[str, list[Ran]]:
    """The autograd nodes that ran, by name and in order."""
    found: dict[str, list[Ran]] = defaultdict(list)
    for evaluation in ran.walk():
        if evaluation.name.startswith(_EVALUATION):
            name = evaluation.name.removeprefix(_EVALUATION)
            found[name] += [inner for inner in evaluation.inside if inner.name == name]
    return found


def forward_ops(ran: Ran) -> dict[str, list[Ran]]:
    """The ops outside the backward, by name and in order; an op within one of the same name does not count."""
    found: dict[str, list[Ran]] = defaultdict(list)

    def visit(outer: Ran, names: frozenset[str]) -> None:
        for inner in outer.inside:
            if inner.name.startswith(_EVALUATION):
                continue
            if inner.name not in names and "::" in inner.name:
                found[inner.name].append(inner)
            visit(inner, names | {inner.name})

    visit(ran, frozenset())
    return found


def _plain_name(name: str) -> str:
    """The name of an op without its namespace and the underscore of its in-place form; empty if it is no op."""
    namespace, _, base = name.rpartition("::")
    if not namespace or namespace.startswith(("autograd", "torch::autograd")):
        return ""
    base = _SAME.get(base, base)
    base = base.removesuffix("_") if not base.endswith("__") else base
    return _SAME.get(base, base)

"""Finds out which formulas PyTorch replaces while a program is recorded; run as a module.

Each sample of PyTorch's own test suite, and some that it lacks, runs plainly, under a dispatch mode that does nothing,
and under the recorder. `python -m tools.formula_audit` prints what differs; `--write` makes this the data that the
recorder uses for this version of PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

import determinism
from determinism.audit.torch import database
from determinism.frameworks.torch.mode_recorder import nodes_below
from determinism.frameworks.torch.ops import AUTOCAST, CONJUGATION, DATA, run_restoring
from determinism.frameworks.wrapping import wrap
from determinism.trace.writer import ProcessWriter
from tools.formula_cases import Case, Outcome, cases_of, differing, made_cases, observe

# The ops that ran, according to the profiler: it also sees those that no mode sees, and works without a mode.

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
"""Ops that make, move, convert, read or fill memory and compute nothing."""
_SAME = {
    "_index_put_impl": "index_put",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
}


@dataclass
class Ran:
    """An op, a node or another profiler event, with those that ran inside it."""

    name: str
    inside: list[Ran] = field(default_factory=list)

    def walk(self) -> Iterator[Ran]:
        """Yield all that ran inside, in order, outer before inner."""
        for ran in self.inside:
            yield ran
            yield from ran.walk()

    def computed(self) -> list[str]:
        """The innermost ops that compute something; an in-place op counts as its other form."""
        found = [name for ran in self.inside for name in ran.computed()]
        name = _plain_name(self.name)
        return found or ([name] if name and name not in _MOVES else [])

    def shape(self) -> Any:
        """Everything inside, in a form that can be compared."""
        return (self.name, [ran.shape() for ran in self.inside])


def observe_ops(run: Callable[[], Any]) -> Ran:
    """Run a function under the profiler."""
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
    """The same, with each handler replaced by the op that it calls, as if there were no mode."""
    inside: list[Ran] = []
    for inner in ran.inside:
        if inner.name in ("detach", "aten::detach"):
            # A mode sees the detaching of saved tensors.
            continue
        if inner.name == _HANDLER:
            for called in inner.inside:
                again = without_handlers(called)
                inside += again.inside if called.name == ran.name else [again]
        else:
            inside.append(without_handlers(inner))
    return Ran(ran.name, inside)


def dispatched(ran: Ran) -> set[str]:
    """Names of the ops for which a mode's handler was called."""
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
    """The name of an op without its namespace and the underscore of its in-place form; empty if it is not an op."""
    namespace, _, base = name.rpartition("::")
    if not namespace or namespace.startswith(("autograd", "torch::autograd")):
        return ""
    base = _SAME.get(base, base)
    base = base.removesuffix("_") if not base.endswith("__") else base
    return _SAME.get(base, base)


# The ways to run a case: plainly, under a mode that does nothing, under the recorder.


class EmptyMode(TorchDispatchMode):
    """Runs every op unchanged: what differs under it, its mere presence changes."""

    supports_higher_order_operators = True

    def __init__(self, conjugation: Collection[str] = (), autocast: Collection[str] = ()) -> None:
        super().__init__()
        self._conjugation = conjugation
        self._autocast = autocast

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave `torch.compile` as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        keys = CONJUGATION if name in self._conjugation else ()
        keys += AUTOCAST if name in self._autocast else ()
        return run_restoring(keys, func, args, kwargs or {})


@contextmanager
def empty_mode(
    nodes: Collection[str] = (), conjugation: Collection[str] = (), autocast: Collection[str] = ()
) -> Iterator[None]:
    """A mode that does nothing; some nodes and ops are shielded from it, to find those that it changes.

    Args:
        nodes: Names of autograd nodes that run without the mode.
        conjugation: Names of ops whose own ops find lazy conjugation.
        autocast: Names of ops whose own ops find autocast.
    """

    def around(run: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        handles = []
        for node in nodes_below(roots):
            if node.name() in nodes:
                handles += [node.register_prehook(lambda *_: modes.append(_pop_mode()))]
                handles += [node.register_hook(lambda *_: _push_mode(modes.pop()))]
        try:
            return run(roots, *args, **kwargs)
        finally:
            modes.clear()
            for handle in handles:
                handle.remove()

    modes: list[Any] = []
    undo = wrap(torch.autograd, "_engine_run_backward", around)
    try:
        with EmptyMode(conjugation, autocast):
            yield
    finally:
        undo()


@contextmanager
def recorder() -> Iterator[list[str]]:
    """Record into a folder that is removed; yields the identifiers of the blind spots so far."""
    counted: list[str] = []

    def around(original: Any, writer: Any, identifier: str, *args: Any) -> None:
        counted.append(identifier)
        original(writer, identifier, *args)

    undo = wrap(ProcessWriter, "blind_spot", around)
    try:
        with tempfile.TemporaryDirectory() as folder, determinism.record(Path(folder) / "trace"):
            yield counted
    finally:
        undo()


# Finds what a mode changes in one case, and which node or op changes.


@dataclass
class Findings:
    """What a mode changes: by name, the aspects in which a difference was measured.

    The aspect `ops` means that different ops run, whether or not the results of the sample show it.
    """

    nodes: dict[str, set[str]] = field(default_factory=dict)
    """Autograd nodes that use a different formula."""
    conjugation_inside: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose own ops miss lazy conjugation."""
    autocast_inside: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose own ops miss autocast."""
    composites: dict[str, set[str]] = field(default_factory=dict)
    """Ops that consist of other ops, which are chosen differently under a mode."""
    forward_mode: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose forward-mode derivative uses a different formula."""
    unexplained: dict[str, set[str]] = field(default_factory=dict)
    """Cases that a mode changes at an unknown place."""
    disturbed: dict[str, set[str]] = field(default_factory=dict)
    """Cases that end differently when they are recorded, without a blind spot."""
    shown: dict[str, set[str]] = field(default_factory=dict)
    """Cases that end differently when they are recorded, with a blind spot."""
    varying: dict[str, set[str]] = field(default_factory=dict)
    """Ops that themselves vary from run to run; nothing is concluded about these."""

    def settle(self) -> None:
        """Forget what other findings explain.

        These are cases of ops that vary, even if two runs happened to agree, and derivatives of ops that choose different
        ops anyway.
        """
        for name in self.composites:
            self.forward_mode.pop(name, None)
        for cases in (self.unexplained, self.disturbed, self.shown):
            for name in [name for name in cases if name.partition(" ")[0] in self.varying]:
                del cases[name]

    def merge(self, other: Findings) -> None:
        """Add the findings of another case."""
        for group, found in vars(other).items():
            for name, aspects in found.items():
                getattr(self, group).setdefault(name, set()).update(aspects)


@dataclass(frozen=True)
class _Suspects:
    """Names of what ran differently under a mode."""

    nodes: set[str]
    ops: set[str]
    computing_nodes: set[str]
    """Those of the nodes that computed something else."""
    computing_forward: set[str]
    """Ops of the forward that computed something else, although no handler was called for them."""


class _Shielded(NamedTuple):
    """Names of the nodes and ops that run as if there were no mode, in the form that `empty_mode` takes."""

    nodes: frozenset[str] = frozenset()
    conjugation: frozenset[str] = frozenset()
    autocast: frozenset[str] = frozenset()


_NOTHING = _Shielded()


def examine(cases: Iterable[Case]) -> tuple[Findings, int]:
    """Run cases in every way.

    Returns:
        What differs, and the number of cases.
    """
    findings = Findings()
    plain_outcomes: list[tuple[Case, Outcome | None]] = []
    for case in cases:
        first, plain = observe(case, nullcontext()), observe(case, nullcontext())
        # Some warnings appear once in a process.
        if set(differing(first, plain)) - {"warnings"}:
            findings.varying.setdefault(case.op, set()).update(differing(first, plain))
            plain_outcomes.append((case, None))
        else:
            findings.merge(_changed_by_mode(case, plain))
            plain_outcomes.append((case, plain))
    with recorder() as blind_spots:
        for case, outcome in plain_outcomes:
            before = blind_spots.count("formula-changed")
            disturbed = set() if outcome is None else set(differing(outcome, observe(case, nullcontext())))
            if disturbed:
                is_shown = blind_spots.count("formula-changed") > before
                (findings.shown if is_shown else findings.disturbed)[case.name] = disturbed
    return findings, len(plain_outcomes)


def _changed_by_mode(case: Case, plain: Outcome) -> Findings:
    findings = Findings()
    suspects = _suspects(case)
    measured = set(differing(plain, observe(case, empty_mode())))
    shielded = _guilty(case, plain, suspects) if measured else _NOTHING
    findings.nodes = {name: set(measured) for name in shielded.nodes}
    findings.conjugation_inside = {name: set(measured) for name in shielded.conjugation}
    findings.autocast_inside = {name: set(measured) for name in shielded.autocast}
    # Differences that only follow from these are gone; what still differs ran different ops to the same result.
    rest = _suspects(case, shielded) if shielded != _NOTHING else suspects
    if case.is_first_order:
        for name in (suspects.computing_nodes & shielded.nodes) | rest.computing_nodes:
            findings.nodes.setdefault(name, set()).add("ops")
    is_explained = not measured or shielded != _NOTHING
    others = findings.forward_mode if case.is_forward_mode else findings.composites
    for name in rest.computing_forward:
        others[name] = {"ops"} if is_explained else {"ops", *measured}
    if not is_explained and not rest.computing_forward:
        findings.unexplained[case.name] = measured
    return findings


def _suspects(case: Case, shielded: _Shielded = _NOTHING) -> _Suspects:
    plain = observe_ops(_attempt(case, nullcontext))
    seen = observe_ops(_attempt(case, partial(empty_mode, *shielded)))
    mode = without_handlers(seen)
    node_names, computing_nodes = _different(nodes(plain), nodes(mode))
    _, computing_ops = _different(forward_ops(plain), forward_ops(mode))
    handled = dispatched(seen)
    inner_ops, _ = _different(_everywhere(plain, handled), _everywhere(mode, handled))
    outer = {op.name for op in plain.walk() if any(o.name in computing_ops - {op.name} for o in op.walk())}
    return _Suspects(
        node_names, inner_ops, computing_nodes, computing_ops - outer - (set() if case.is_forward_mode else handled)
    )


def _attempt(case: Case, way: Callable[[], AbstractContextManager[None]]) -> Callable[[], object]:
    return lambda: observe(case, way())


def _everywhere(ran: Ran, names: set[str]) -> dict[str, list[Ran]]:
    found: dict[str, list[Ran]] = {}
    for op in ran.walk():
        if op.name in names:
            found.setdefault(op.name, []).append(op)
    return found


def _different(plain: dict[str, list[Ran]], mode: dict[str, list[Ran]]) -> tuple[set[str], set[str]]:
    """Names whose occurrences differ at all, and names of those that compute differently."""
    any_difference, computing = set(), set()
    for name in plain.keys() | mode.keys():
        occurrences, others = plain.get(name, []), mode.get(name, [])
        if [one.shape() for one in occurrences] != [other.shape() for other in others]:
            any_difference.add(name)
        if len(occurrences) == len(others) and any(
            one.computed() != other.computed() for one, other in zip(occurrences, others, strict=True)
        ):
            computing.add(name)
    return any_difference, computing


def _guilty(case: Case, plain: Outcome, suspects: _Suspects) -> _Shielded:
    """The smallest set of nodes and ops that must be shielded from the mode for it to change nothing."""
    ops = frozenset(suspects.ops)
    shielded = _Shielded(frozenset(suspects.nodes), ops, ops)
    if not _is_plain(case, plain, shielded):
        return _NOTHING
    for group, names in shielded._asdict().items():
        for name in sorted(names):
            without = shielded._replace(**{group: getattr(shielded, group) - {name}})
            shielded = without if _is_plain(case, plain, without) else shielded
    return shielded


def _is_plain(case: Case, plain: Outcome, shielded: _Shielded) -> bool:
    return not differing(plain, observe(case, empty_mode(*shielded)))


# Writes the findings of an audit into the data that the recorder uses.

_HEAD = """\
# What PyTorch computes differently while a dispatch mode is active, by version.
# Written by `python -m tools.formula_audit --write`.
# node: autograd nodes that take another formula; the recorder leaves the stack of modes while they run.
# conjugation_inside, autocast_inside: ops whose own ops miss these; the recorder restores them.
# composite: ops that choose other ops. forward_mode: ops whose forward-mode derivative takes another formula.
# differs: what was measured to differ; "ops" says that other ops run, whether or not a sample showed it in its results.
"""
GROUPS = {
    "node": "nodes",
    "conjugation_inside": "conjugation_inside",
    "autocast_inside": "autocast_inside",
    "composite": "composites",
    "forward_mode": "forward_mode",
}


def write(findings: Findings, facts: dict[str, Any], path: Path = DATA) -> None:
    """Write an audit, replacing an earlier one of the same version and device.

    Args:
        findings: The findings of the audit.
        facts: `torch`, `device`, `cases`, `dtypes`.
        path: The file.
    """
    audits = tomllib.loads(path.read_text(encoding="utf-8"))["audit"] if path.exists() else []
    kept = [a for a in audits if (a["torch"], a["device"]) != (facts["torch"], facts["device"])]
    audit = dict(facts)
    for key, group in GROUPS.items():
        found = getattr(findings, group)
        audit[key] = [{"name": name, "differs": sorted(found[name])} for name in sorted(found)]
    ordered = sorted([*kept, audit], key=lambda one: (one["torch"], one["device"]))
    path.write_text(_HEAD + "".join(_written(one) for one in ordered), encoding="utf-8")


def _written(audit: dict[str, Any]) -> str:
    lines = ["\n[[audit]]"]
    for key, value in audit.items():
        if key in GROUPS:
            lines += [f"{key} = ["]
            lines += [f'    {{ name = "{one["name"]}", differs = {json.dumps(one["differs"])} }},' for one in value]
            lines += ["]"]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


# Runs the audit and prints its findings: `python -m tools.formula_audit`.

os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def main() -> int:
    """Run the audit; the exit status is 1 if recording disturbs a case without a blind spot."""
    arguments = _arguments()
    dtypes = [getattr(torch, name) for name in arguments.dtypes]
    infos = [info for info in database() if not arguments.ops or info.name in arguments.ops]
    torch.set_warn_always(True)
    findings, examined, start = Findings(), 0, time.monotonic()
    groups = [cases_of(info, dtype, arguments.samples) for info in infos for dtype in dtypes]
    with _quiet_profiler():
        for cases in groups if arguments.ops else (made_cases(), *groups):
            found, number = examine(cases)
            findings.merge(found)
            examined += number
    findings.settle()
    print(f"PyTorch {torch.__version__}, CPU: {examined} cases in {time.monotonic() - start:.0f} s")
    for group, names in vars(findings).items():
        print(f"\n{group}:")
        for name in sorted(names):
            print(f"  {name}: {', '.join(sorted(names[name]))}")
    if arguments.write:
        facts = {
            "torch": torch.__version__.partition("+")[0],
            "device": "cpu",
            "cases": examined,
            "dtypes": arguments.dtypes,
        }
        write(findings, facts)
    return 1 if findings.disturbed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.formula_audit", description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of ops, as in PyTorch's test suite; without any, all")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64", "complex64", "int64", "bfloat16"])
    parser.add_argument("--samples", type=int, default=6, help="the most samples per op and dtype")
    parser.add_argument("--write", action="store_true", help="write what was found into the package")
    return parser.parse_args()


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Silence the profiler, which writes a line for each start and end to the standard error, from C++."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


if __name__ == "__main__":
    raise SystemExit(main())

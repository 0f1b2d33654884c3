"""Finds what a mode changes in one case, and which node or op it is that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from determinism.frameworks.torch.formula_audit.op_tree import (
    Ran,
    dispatched,
    forward_ops,
    nodes,
    observe_ops,
    without_handlers,
)
from determinism.frameworks.torch.formula_audit.outcome import Case, Outcome, differing, observe
from determinism.frameworks.torch.formula_audit.ways import empty_mode, recorder
from determinism.frameworks.torch.formulas import BLIND_SPOT


@dataclass
class Findings:
    """What a mode changes: by name, the aspects in which a difference was measured.

    The aspect `ops` says that other ops run, whether or not the sample shows it in its results.
    """

    nodes: dict[str, set[str]] = field(default_factory=dict)
    """Autograd nodes that take another formula."""
    conjugation_inside: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose own ops miss lazy conjugation."""
    autocast_inside: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose own ops miss autocast."""
    composites: dict[str, set[str]] = field(default_factory=dict)
    """Ops that are no more than other ops, chosen otherwise under a mode."""
    forward_mode: dict[str, set[str]] = field(default_factory=dict)
    """Ops whose forward-mode derivative takes another formula."""
    unexplained: dict[str, set[str]] = field(default_factory=dict)
    """Cases that a mode changes, and nobody knows where."""
    disturbed: dict[str, set[str]] = field(default_factory=dict)
    """Cases that end otherwise when they are recorded, and nothing says so."""
    shown: dict[str, set[str]] = field(default_factory=dict)
    """Cases that end otherwise when they are recorded, and a blind spot says so."""
    varying: dict[str, set[str]] = field(default_factory=dict)
    """Ops that are not the same twice by themselves; nothing is said of these."""

    def settle(self) -> None:
        """Forget what other findings explain.

        That is cases of ops that are not the same twice, even where two runs happened to agree, and derivatives of ops
        that choose other ops anyway.
        """
        for name in self.composites:
            self.forward_mode.pop(name, None)
        for cases in (self.unexplained, self.disturbed, self.shown):
            for name in [name for name in cases if name.partition(" ")[0] in self.varying]:
                del cases[name]

    def merge(self, other: Findings) -> None:
        """Add what another case showed."""
        for group, found in vars(other).items():
            for name, aspects in found.items():
                getattr(self, group).setdefault(name, set()).update(aspects)


@dataclass(frozen=True)
class _Suspects:
    """Names of what ran differently under a mode."""

    nodes: set[str]
    ops: set[str]
    computing_nodes: set[str]
    """Those among the nodes that computed something else."""
    computing_forward: set[str]
    """Ops of the forward that computed something else, although no handler was called for them."""


class _Shielded(NamedTuple):
    """Names of what runs as if there were no mode, as `empty_mode` takes them."""

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
        # Some warnings come once in a process.
        if set(differing(first, plain)) - {"warnings"}:
            findings.varying.setdefault(case.op, set()).update(differing(first, plain))
            plain_outcomes.append((case, None))
        else:
            findings.merge(_changed_by_mode(case, plain))
            plain_outcomes.append((case, plain))
    with recorder() as blind_spots:
        for case, outcome in plain_outcomes:
            before = blind_spots.count(BLIND_SPOT)
            disturbed = set() if outcome is None else set(differing(outcome, observe(case, nullcontext())))
            if disturbed:
                is_shown = blind_spots.count(BLIND_SPOT) > before
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
    # What only follows from these does not differ any more; what still does ran other ops to the same result.
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
    """Names whose occurrences differ at all, and names of those that compute something else."""
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
    """The fewest nodes and ops that must be shielded from the mode for it to change nothing."""
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

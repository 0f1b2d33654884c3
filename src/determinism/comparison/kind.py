"""Which kind a divergence is, and what exactly differs, from the two records at the root."""

from __future__ import annotations

import numpy as np

from determinism.comparison.group import Group
from determinism.comparison.origins import Entry, Input
from determinism.comparison.roots import Root
from determinism.trace.chunk import Array
from determinism.types import Kind, Level, Role

_MAX_TEXT = 160


def kind_of(root: Root, level: Level) -> Kind | None:
    """The first rule that holds, in the order of `Kind`; None where the level of recording does not show it."""
    if root.is_extra:
        return Kind.STRUCTURE
    first, second = root.first, root.second
    assert first is not None and second is not None
    if root.aspects.generators:
        return Kind.RNG
    if level is not Level.OP and first.role is not Role.BATCH:
        return None
    if _external_differs(first, second) or (first.role is Role.BATCH and not root.aspects.edges and not first.inputs):
        return Kind.DATA
    if root.aspects.arguments:
        return Kind.ARGUMENT
    if root.aspects.edges:
        return Kind.ORDER if _is_reordered(root) else Kind.STRUCTURE
    if root.reads_unwritten:
        return Kind.UNINITIALIZED
    if root.aspects.digests:
        return Kind.MUTATION
    return Kind.DATA if first.role is Role.BATCH else Kind.OP


def inputs_equal(root: Root, kind: Kind | None) -> bool | None:
    """Whether the inputs were equal, as far as the two runs show it; None where only a repetition can tell."""
    if kind in (None, Kind.OP, Kind.STRUCTURE):
        first, second = root.first, root.second
        if first is not None and second is not None and first.role is Role.MODULE and not root.aspects.digests:
            return True
        return None
    return kind in (Kind.RNG, Kind.ARGUMENT)


def detail_of(root: Root, kind: Kind | None) -> str:
    """What exactly differs, with both values."""
    first, second = root.first, root.second
    if first is None or second is None:
        has, lacks = ("run 1", "run 2") if second is None else ("run 2", "run 1")
        return f"{has} made a record here that {lacks} did not make."
    if kind is Kind.RNG:
        return "The generator was in another state before the op drew from it."
    if kind is Kind.ARGUMENT:
        return f"Arguments of run 1: {_cut(first.arguments)}. Arguments of run 2: {_cut(second.arguments)}."
    if kind is Kind.DATA:
        return "The values that came in from outside the framework differ."
    if kind is Kind.ORDER:
        return "The op took its inputs in another order: both runs hold the same tensors, made by the same records."
    if kind is Kind.STRUCTURE:
        return "The op took another tensor as its input in run 2 than in run 1."
    if kind is Kind.UNINITIALIZED:
        return "The op read memory that no op had written."
    if kind is Kind.MUTATION:
        return "An input no longer held what the op that made it had written; that op's output was equal in both runs."
    if kind is Kind.OP:
        return "Arguments and the producers of all inputs are equal; the outputs differ."
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"


def _external_differs(first: Entry, second: Entry) -> bool:
    """Whether an input that nobody recorded producing (or that was handed out before it was filled) differs."""
    for mine, other in zip(first.inputs, second.inputs, strict=False):
        if mine.digest != other.digest and (mine.producer < 0 or other.producer < 0):
            return True
    return False


def _is_reordered(root: Root) -> bool:
    """Whether what either run read here is read by the same sort of record elsewhere in the other run."""
    group, row = root.group, root.position
    first, second = root.first, root.second
    assert first is not None and second is not None
    keys_first = _read_keys(group.producers_first, group.first.children["inputs"].starts, int(group.pairing.first[row]))
    keys_second = _read_keys(
        group.producers_second, group.second.children["inputs"].starts, int(group.pairing.second[row])
    )
    if sorted(keys_first) == sorted(keys_second):
        return True
    op_first = group.first.columns["op"][group.pairing.first[row]]
    op_second = group.second.columns["op"][group.pairing.second[row]]
    read_first = _keys_read_by(group, 0, op_first)
    read_second = _keys_read_by(group, 1, op_second)
    # What one run reads here must be read by such a record of the other run too, or be what the record before it made.
    changed_first = [key for key in keys_first if key not in keys_second]
    changed_second = [key for key in keys_second if key not in keys_first]
    return all(key in read_second for key in changed_first) and all(key in read_first for key in changed_second)


def _read_keys(producers: Array, starts: Array, row: int) -> list[int]:
    return [int(key) for key in producers[starts[row] : starts[row + 1]]]


def _keys_read_by(group: Group, side: int, op: int) -> set[int]:
    chunk = (group.first, group.second)[side]
    producers = (group.producers_first, group.producers_second)[side]
    owner = np.repeat(np.arange(chunk.rows), np.diff(chunk.children["inputs"].starts))
    return {int(key) for key in producers[chunk.columns["op"][owner] == op]}


def foreign_input(first: Entry, second: Entry) -> Input | None:
    """The input that was changed behind the framework's back, if the digests show one."""
    for mine, other in zip(first.inputs, second.inputs, strict=False):
        if mine.digest != other.digest and mine.producer >= 0:
            return mine
    return None

"""Compares paired records column by column, many at once: which differ, and in which aspects."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from determinism.comparison.divergence import MOST_ENTRIES, StepSpan
from determinism.trace.chunks import Array, Children, Chunk, Names
from determinism.trace.schema import INPUT_PATHS, Frame, Table
from determinism.types import Role

T = TypeVar("T")

# Assigns equal names of two processes equal numbers, so that columns of numbers can be compared.

_SHARE_OF_COMMON_STACKS = 0.5
_PRECISIONS = ((True, True, True), (True, False, True), (True, False, False), (False, False, False))
"""Whether stacks match with their files, line numbers and source lines. In an edited program, lines have moved."""


class RunPair(NamedTuple, Generic[T]):
    """The same thing from both runs."""

    first: T
    second: T


class Numbers(RunPair[Array]):
    """For both processes: the canonical number of each own number; the last entry represents "absent"."""

    @cached_property
    def num_common(self) -> int:
        """Own numbers below this one mean the same in both processes."""
        named = min(len(self.first), len(self.second)) - 1
        apart = np.flatnonzero(self.first[:named] != self.second[:named])
        return int(apart[0]) if len(apart) else named

    def all_equal(self, first: Array, second: Array) -> bool:
        """Whether all cells of two columns of own numbers mean the same, pair by pair."""
        if are_same_cells(first, second) and (not len(first) or int(first.max()) < self.num_common):
            return True
        return np.array_equal(self.first[first], self.second[second])


def are_same_cells(first: Array, second: Array) -> bool:
    """Whether two columns are equal; costs nothing where both processes share one array."""
    return first is second or np.array_equal(first, second)


class Named(Protocol):
    """The names and the description of a process."""

    @property
    def names(self) -> Names:
        """Its names."""

    @property
    def description(self) -> dict[str, Any]:
        """Its description of itself."""


class Canonical:
    """Canonical numbers of ops, modules, stacks, arguments and layouts of two processes."""

    def __init__(self, first: Named, second: Named) -> None:
        """Match the names of both.

        Stacks match by file, line, function and source line, with files below the working directory named relative to
        it. If most stacks differ, the runs ran different versions of a program: then line numbers are ignored, and if
        that does not suffice, source lines and files as well.
        """
        self.ops = _match(first.names.texts(Table.OP), second.names.texts(Table.OP))
        self.modules = _match(first.names.texts(Table.MODULE), second.names.texts(Table.MODULE))
        self.arguments = _match(*(map(_without_paths, one.names.texts(Table.ARGUMENTS)) for one in (first, second)))
        self.layouts = _match(first.names.texts(Table.LAYOUT), second.names.texts(Table.LAYOUT))
        self.stacks = _match_stacks(first, second)

    def views(self, chunks: RunPair[Chunk]) -> RunPair[Array]:
        """Return, for each input entry of both runs, the number of the view through which it was read."""
        inputs = (chunk.children["inputs"].columns["layout"] for chunk in chunks)
        return RunPair(*(numbers[own] for numbers, own in zip(self.layouts, inputs, strict=True)))


def _without_paths(arguments: str) -> str:
    """Drop the names of inputs from arguments: a framework may number them differently in each run."""
    return arguments.partition(INPUT_PATHS)[0]


def _match_stacks(first: Named, second: Named) -> Numbers:
    files = [{place for _, place in _places(process)} for process in (first, second)]
    # Code in a temporary folder has a different file name in every run.
    common_files = files[0] & files[1]
    for has_files, has_lines, has_code in _PRECISIONS:
        known = common_files if has_files else set()
        texts = [_stack_texts(process, files=known, lines=has_lines, code=has_code) for process in (first, second)]
        distinct = [set(part) for part in texts]
        common = len(distinct[0] & distinct[1])
        if common >= _SHARE_OF_COMMON_STACKS * min(len(part) for part in distinct):
            break
    return _match(*texts)


def _match(first: Iterable[str], second: Iterable[str]) -> Numbers:
    numbers: dict[str, int] = {}

    def of(texts: Iterable[str]) -> Array:
        return np.array([*(numbers.setdefault(text, len(numbers)) for text in texts), -1], dtype=np.int32)

    return Numbers(of(first), of(second))


def _places(process: Named) -> Iterator[tuple[Frame, str]]:
    """Yield each frame with its file, relative to the working directory if it is below that."""
    folder = str(process.description.get("environment", {}).get("working directory", ""))
    prefix = os.path.join(folder, "") if folder else ""
    for frame in process.names.frames:
        yield frame, frame.file.removeprefix(prefix)


def _stack_texts(process: Named, *, files: set[str], lines: bool, code: bool) -> list[str]:
    # `with determinism.record(...)` is on a different line for each of the two recordings.
    begun_in = process.description.get("begun_in")
    frames = [
        ""
        if [frame.file, frame.function] == begun_in
        else ":".join(
            (
                place if place in files else "",
                str(frame.line) if lines else "",
                frame.function,
                frame.code if code else "",
            )
        )
        for frame, place in _places(process)
    ]
    return ["\n".join(frames[number] for number in stack) for stack in process.names.stack_frames]


class Aspects(NamedTuple):
    """The aspects in which a pair of records differs."""

    outputs: bool
    edges: bool
    digests: bool
    arguments: bool
    generators: bool


_COMPARED = ("step", "phase", "role", "thread", "op", "module", "stack", "arguments")
"""Columns of numbers per record; `forward` is left out: its target shows in the stack, and it is not part of the computation."""


@dataclass(frozen=True)
class Flags:
    """One bool per pair and aspect; True where the two records differ."""

    outputs: Array
    edges: Array
    """A different producer, output, access or view of an input."""
    digests: Array
    """The content of an input that has no recorded producer, or that others can write."""
    arguments: Array
    generators: Array

    @classmethod
    def none(cls, rows: int) -> Flags:
        """Flags for pairs that do not differ."""
        nothing = np.zeros(rows, dtype=bool)
        return cls(nothing, nothing, nothing, nothing, nothing)

    def any(self) -> Array:
        """Whether anything differs."""
        return self.outputs | self.edges | self.digests | self.arguments | self.generators

    def at(self, row: int) -> Aspects:
        """Return the flags of one pair."""
        return Aspects(*(bool(getattr(self, aspect)[row]) for aspect in Aspects._fields))

    def spread(self, at: Array, length: int) -> Flags:
        """Return flags for `length` pairs and leftovers, with these at the given positions and all others unset."""

        def spread(flags: Array) -> Array:
            whole = np.zeros(length, dtype=bool)
            whole[at] = flags
            return whole

        return Flags(*(spread(getattr(self, aspect)) for aspect in Aspects._fields))


def lists_differ(lists: RunPair[Children], rows: RunPair[Array], columns: Iterable[tuple[Array, Array]]) -> Array:
    """For each pair of rows, whether the list entries differ in number or in any of the given columns."""
    counts, other = (entries.counts[of_side] for entries, of_side in zip(lists, rows, strict=True))
    differs = counts != other
    usable = np.where(differs, 0, counts)
    total = int(usable.sum())
    if not total:
        return np.asarray(differs)
    owner = np.repeat(np.arange(len(usable)), usable)
    within = np.arange(total) - np.repeat(np.cumsum(usable) - usable, usable)
    at_first, at_second = (
        entries.starts[of_side][owner] + within for entries, of_side in zip(lists, rows, strict=True)
    )
    entry_differs = np.zeros(total, dtype=bool)
    for left, right in columns:
        unequal = left[at_first] != right[at_second]
        entry_differs |= unequal.any(axis=1) if unequal.ndim == 2 else unequal
    differs[owner[entry_differs]] = True
    return np.asarray(differs)


def producers(chunk: Chunk) -> Array:
    """Return, per input entry, the number of the record that produced it; -1 if no recorded op did."""
    inputs = chunk.children["inputs"]
    distance = inputs.columns["producer"].astype(np.int64)
    return np.where(distance == 0, -1, inputs.spread(chunk.numbers) - distance)


def compare_rows(
    chunks: RunPair[Chunk], rows: RunPair[Array], canonical: Canonical, producers: RunPair[Array]
) -> Flags:
    """Compare pairs of records, given by their rows; `producers` are numbered alike on both sides."""

    def column(group: str, name: str) -> RunPair[Array]:
        return RunPair(*(chunk.children[group].columns[name] for chunk in chunks))

    def differ(group: str, *columns: RunPair[Array]) -> Array:
        return lists_differ(RunPair(*(chunk.children[group] for chunk in chunks)), rows, columns)

    arguments = (
        numbers[chunk.columns["arguments"][of_side]]
        for numbers, chunk, of_side in zip(canonical.arguments, chunks, rows, strict=True)
    )
    return Flags(
        outputs=_outputs_differ(chunks, rows, canonical),
        edges=differ(
            "inputs", producers, column("inputs", "output"), column("inputs", "access"), canonical.views(chunks)
        ),
        digests=_digests_differ(chunks, rows),
        arguments=np.not_equal(*arguments),
        generators=generators_differ(chunks, rows),
    )


def generators_differ(chunks: RunPair[Chunk], rows: RunPair[Array]) -> Array:
    """For each pair of rows, whether a generator was in a different state."""
    states = RunPair(*(chunk.children["generators"] for chunk in chunks))
    return lists_differ(states, rows, [RunPair(*(entries.columns["digest"] for entries in states))])


def outputs_differ(chunks: RunPair[Chunk], pairing: Pairing, canonical: Canonical) -> Array:
    """For each entry of a pairing, whether it is a pair whose outputs differ; False for records without a partner."""
    paired = np.flatnonzero(pairing.are_pairs)
    differs = np.zeros(len(pairing.first), dtype=bool)
    rows = RunPair(pairing.first[paired], pairing.second[paired])
    differs[paired] = _outputs_differ(chunks, rows, canonical)
    return differs


def _outputs_differ(chunks: RunPair[Chunk], rows: RunPair[Array], canonical: Canonical) -> Array:
    outputs = RunPair(*(chunk.children["outputs"] for chunk in chunks))
    layouts = (numbers[of.columns["layout"]] for numbers, of in zip(canonical.layouts, outputs, strict=True))
    return lists_differ(
        outputs, rows, [RunPair(*layouts), RunPair(*(entries.columns["digest"] for entries in outputs))]
    )


def _digests_differ(chunks: RunPair[Chunk], rows: RunPair[Array]) -> Array:
    """Whether an input that both runs digested differs.

    A digest that only one run has says nothing: in that run the memory had been handed out, for instance for logging,
    and in the other it had not. If it was also changed, repeating the op shows that.
    """
    lists = RunPair(*(chunk.children["input_digests"] for chunk in chunks))
    columns = [RunPair(*(entries.columns[name] for entries in lists)) for name in ("position", "digest")]
    differs = lists_differ(lists, rows, columns)
    for at in np.flatnonzero(differs):
        mine, other = (held_by_position(entries, of_side[at]) for entries, of_side in zip(lists, rows, strict=True))
        differs[at] = any(mine[position] != other[position] for position in mine.keys() & other.keys())
    return differs


def held_by_position(digests: Children, row: int) -> dict[int, bytes]:
    """Return the digests of a record's inputs that were digested when it ran, by their positions."""
    positions = digests.columns["position"][digests.part(row)].tolist()
    return dict(zip(positions, digests.digests_of(row), strict=True))


def same_structure(first: Chunk, second: Chunk, canonical: Canonical) -> Array:
    """For chunks of equal length, whether record i of both is the same op at the same place."""
    same = first.columns["step"] == second.columns["step"]
    for name in ("phase", "role", "thread"):
        same &= first.columns[name] == second.columns[name]
    for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
        same &= numbers.first[first.columns[name]] == numbers.second[second.columns[name]]
    return np.asarray(same)


def are_same(first: Chunk, second: Chunk, canonical: Canonical, *, but_for: Collection[str] = ()) -> bool:
    """Whether chunks of equal length are equal throughout, apart from producers; compares whole columns at once.

    Args:
        first: Records of the first process.
        second: Records of the second one.
        canonical: Numbers for names.
        but_for: Groups of columns that may differ, such as `generators`.

    False is not conclusive: an input that only one run digested is not a difference (see `compare_rows`).
    """
    names = {"op": canonical.ops, "module": canonical.modules, "stack": canonical.stacks}
    names |= {"arguments": canonical.arguments, "layout": canonical.layouts}

    def hold_same(left: dict[str, Array], right: dict[str, Array], columns: Iterable[str]) -> bool:
        return all(
            names[name].all_equal(left[name], right[name]) if name in names else are_same_cells(left[name], right[name])
            for name in columns
        )

    def lists_same(left: Children, right: Children) -> bool:
        columns = left.columns.keys() - {"producer"}
        return are_same_cells(left.starts, right.starts) and hold_same(left.columns, right.columns, columns)

    return hold_same(first.columns, second.columns, _COMPARED) and all(
        lists_same(first.children[group], second.children[group]) for group in first.children.keys() - set(but_for)
    )


# Pairs the records of one step of two runs: by op, module, place and occurrence.


class Pairing(RunPair[Array]):
    """Positions of the records of both runs in a common order of execution; -1 where a record has no partner."""

    @property
    def are_pairs(self) -> Array:
        """Which entries are pairs, as opposed to records that only one run has."""
        return np.asarray((self.first >= 0) & (self.second >= 0))


def align(first: Chunk, second: Chunk, canonical: Canonical) -> Pairing:
    """Pair the records of one step.

    Records at the same position with the same op, module, phase and stack of user code pair directly. After the first
    mismatch, the n-th record with such a key pairs with the n-th with the same key on the other side.
    """
    common = min(first.rows, second.rows)
    equal = same_structure(_head(first, common), _head(second, common), canonical) if common else np.zeros(0, bool)
    if first.rows == second.rows and equal.all():
        rows = np.arange(common)
        return Pairing(rows, rows)
    prefix = common if equal.all() else int(np.argmin(equal))
    left, right = join(keys_of(first, canonical, 0)[prefix:], keys_of(second, canonical, 1)[prefix:])
    head = np.arange(prefix)
    return _in_order(
        first.rows, second.rows, np.concatenate([head, left + prefix]), np.concatenate([head, right + prefix])
    )


def crosses(pairing: Pairing) -> Array:
    """Which pairs come before another pair in one run and after it in the other."""
    paired = np.flatnonzero(pairing.are_pairs)
    found = np.zeros(len(pairing.first), dtype=bool)
    partners = pairing.second[paired]
    if len(partners) > 1:
        latest_before = np.maximum.accumulate(partners)
        earliest_after = np.minimum.accumulate(partners[::-1])[::-1]
        found[paired] = (latest_before > partners) | (earliest_after < partners)
    return found


def repaired(pairing: Pairing, apart: Array, first: Array, second: Array) -> Pairing:
    """Split some pairs, given by positions or a mask, and pair rows of the first run with rows of the second instead."""
    kept = pairing.are_pairs
    kept[apart] = False
    rows = [int((side >= 0).sum()) for side in pairing]
    left = np.concatenate([pairing.first[kept], first])
    right = np.concatenate([pairing.second[kept], second])
    return _in_order(rows[0], rows[1], left, right)


def _head(chunk: Chunk, rows: int) -> Chunk:
    return Chunk(chunk.first, rows, {name: cells[:rows] for name, cells in chunk.columns.items()}, {})


def keys_of(chunk: Chunk, canonical: Canonical, side: int) -> Array:
    """Return one row of numbers per record: equal for the same op at the same place in both runs."""
    columns = [chunk.columns[name].astype(np.int64) for name in ("thread", "phase", "role")]
    for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
        columns.append(numbers[side][chunk.columns[name]].astype(np.int64))
    return np.stack(columns, axis=1)


def join(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the positions of the pairs with equal keys and equal occurrence of the key."""
    both = np.concatenate([first, second])
    _, code = np.unique(both, axis=0, return_inverse=True)
    code = code.reshape(-1)
    codes = (code[: len(first)], code[len(first) :])
    labelled = (_with_occurrence(codes[0]), _with_occurrence(codes[1]))
    _, at_first, at_second = np.intersect1d(labelled[0], labelled[1], assume_unique=True, return_indices=True)
    order = np.argsort(at_first)
    return at_first[order], at_second[order]


def _with_occurrence(code: Array) -> Array:
    """Return numbers that are unique per key and occurrence."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else np.zeros(0, int)
    counts = np.diff(np.concatenate([starts, [len(ordered)]]))
    occurrence = np.empty(len(code), dtype=np.int64)
    occurrence[order] = np.arange(len(code)) - np.repeat(starts, counts)
    return code.astype(np.int64) * (1 << 32) + occurrence


def _in_order(rows_first: int, rows_second: int, left: Array, right: Array) -> Pairing:
    """Put pairs and leftovers in one order: that of the first run, with extra records of the second after their predecessors."""
    partner_of_second = np.full(rows_second, -1, dtype=np.int64)
    partner_of_second[right] = left
    partner_of_first = np.full(rows_first, -1, dtype=np.int64)
    partner_of_first[left] = right
    extra = np.flatnonzero(partner_of_second < 0)
    # A record that only the second run has comes after the latest partner of the records before it.
    reached = np.maximum.accumulate(partner_of_second) if rows_second else partner_of_second
    after = reached[extra]
    first = np.concatenate([np.arange(rows_first), np.full(len(extra), -1, dtype=np.int64)])
    second = np.concatenate([partner_of_first, extra])
    place = np.concatenate([np.arange(rows_first, dtype=np.float64), after + 0.5])
    tie = np.concatenate([np.zeros(rows_first, dtype=np.int64), extra])
    order = np.lexsort((tie, place))
    return Pairing(first[order], second[order])


# Translates record numbers of the second run to the keys that both runs share.


class Translation:
    """Maps record numbers of the second run to keys. A step that is only shifted takes two numbers."""

    def __init__(self, equal_up_to: int) -> None:
        self._equal_up_to = equal_up_to
        self._starts: list[int] = []
        self._keys: list[Array | int] = []

    def add(self, start: int, keys: Array) -> None:
        """Assign these keys to the records from `start` on."""
        if not len(keys):
            return
        shift = int(keys[0]) - start
        is_shifted = bool((keys - np.arange(start, start + len(keys)) == shift).all())
        if is_shifted and self._keys and isinstance(self._keys[-1], int) and self._keys[-1] == shift:
            return
        self._starts.append(start)
        self._keys.append(shift if is_shifted else keys)

    def copy(self) -> Translation:
        """Return a copy that can be extended on trial."""
        other = Translation(self._equal_up_to)
        other._starts, other._keys = self._starts.copy(), self._keys.copy()
        return other

    def keys(self, numbers: Array) -> Array:
        """Return the keys of record numbers; -1 stays -1."""
        result = numbers.copy()
        if not self._starts:
            return result
        recent = numbers >= self._starts[-1]
        if isinstance(shift := self._keys[-1], int):
            # Most of what a step reads is new: this avoids looking up the block of each.
            result += np.where(recent, shift, 0)
            late = np.flatnonzero((numbers >= self._equal_up_to) & ~recent)
        else:
            late = np.flatnonzero(numbers >= self._equal_up_to)
        block = np.searchsorted(self._starts, numbers[late], side="right") - 1
        for index in np.unique(block):
            members = late[block == index]
            held = self._keys[index]
            own = numbers[members]
            result[members] = own + held if isinstance(held, int) else held[own - self._starts[index]]
        return result

    def key(self, number: int) -> int:
        """Return the key of one record number."""
        if number < self._equal_up_to or not self._starts:
            return number
        block = bisect_right(self._starts, number) - 1
        held = self._keys[block]
        return number + held if isinstance(held, int) else int(held[number - self._starts[block]])


VALUE_SINKS = frozenset({Role.ESCAPE, Role.CHECKPOINT, Role.LOSS, Role.MODULE, Role.HELD})
"""Roles of records that take a value out of the computation: a difference that one of them reads matters."""


@dataclass(frozen=True)
class Group:
    """Consecutive records of both runs, paired. Arrays have one entry per pair or leftover unless noted."""

    first: Chunk
    second: Chunk
    pairing: Pairing
    keys: Array
    """The number that identifies the record in both runs: that of the first run, or -2 - number in the second."""
    flags: Flags
    """For pairs; False for leftovers."""
    producers: RunPair[Array]
    """Per input entry: key of the producer, -1 for external."""
    layouts: RunPair[Array]
    """Per input entry: canonical number of the view through which it was read."""
    is_unordered: ClassVar[bool] = False
    """Whether the records have no order of their own."""

    def reads(self, side: int) -> list[tuple[int, int]]:
        """Return, per input entry of a side, the key of the producer and the view."""
        return list(zip(self.producers[side].tolist(), self.layouts[side].tolist(), strict=True))


class StepCounts:
    """The counts of one process; if there are very many steps, several are counted together."""

    def __init__(self) -> None:
        self._width = 1
        """How many steps are counted together."""
        self._counts: dict[int, list[int]] = {}
        """Number of records, and of those that differ, by step divided by the width."""
        self._last_step = -1

    def add_equal(self, chunk: Chunk) -> None:
        """Add records that are equal in both runs."""
        self._add(chunk.columns["step"], _counting(chunk), np.zeros(chunk.rows, dtype=bool))

    def add(self, first: Chunk, second: Chunk, pairing: Pairing, outputs: Array) -> None:
        """Add records of both runs; `outputs` says for each entry of the pairing whether the outputs differ."""
        alone = ~pairing.are_pairs
        steps, counting = np.zeros(len(alone), dtype=np.int64), np.zeros(len(alone), dtype=bool)
        for chunk, rows in ((second, pairing.second), (first, pairing.first)):
            there = rows >= 0
            steps[there] = chunk.columns["step"][rows[there]]
            counting[there] = _counting(chunk)[rows[there]]
        self._add(steps, counting, outputs | alone)

    def _add(self, steps: Array, counting: Array, different: Array) -> None:
        steps, different = steps[counting], different[counting]
        if not len(steps):
            return
        self._last_step = max(self._last_step, int(steps.max()))
        keys, inverse, records = np.unique(steps // self._width, return_inverse=True, return_counts=True)
        differing = np.bincount(inverse, weights=different, minlength=len(keys))
        for key, *counts in zip(keys.tolist(), records.tolist(), differing.tolist(), strict=True):
            self._count(key, *map(int, counts))
        while len(self._counts) > 2 * MOST_ENTRIES:
            self._widen()

    def _count(self, key: int, records: int, different: int) -> None:
        counts = self._counts.setdefault(key, [0, 0])
        counts[0] += records
        counts[1] += different

    def _widen(self) -> None:
        self._width *= 2
        narrow, self._counts = self._counts, {}
        for key, counts in narrow.items():
            self._count(key // 2, *counts)

    @staticmethod
    def spans(several: Iterable[StepCounts]) -> list[StepSpan]:
        """Return the combined counts of several processes, in the order of the steps."""
        total = StepCounts()
        for one in several:
            while total._width < one._width:
                total._widen()
            total._last_step = max(total._last_step, one._last_step)
            for key, counts in one._counts.items():
                total._count(key * one._width // total._width, *counts)
        while len(total._counts) > MOST_ENTRIES:
            total._widen()
        width = total._width
        return [
            StepSpan(key * width, min((key + 1) * width - 1, total._last_step), *counts)
            for key, counts in sorted(total._counts.items())
        ]


def _counting(chunk: Chunk) -> Array:
    """Which records count: all but those that only mark the end of a step."""
    return np.asarray(chunk.columns["role"] != Role.STATE)

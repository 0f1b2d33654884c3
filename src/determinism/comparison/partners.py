"""Finds, for a record that only one run has, its counterpart in the other run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from determinism.comparison.columns import (
    Canonical,
    Flags,
    Group,
    Pairing,
    RunPair,
    compare_rows,
    join,
    lists_differ,
    producers,
    repaired,
)
from determinism.comparison.fingerprints import (
    Fingerprints,
    Produced,
    fingerprints,
    given,
    input_contents,
    ordered,
    stream_fingerprints,
    total,
)
from determinism.comparison.records import Entry, Pair, Root, entry_of, heads_of
from determinism.trace.chunks import Array, Chunk, cut, pick
from determinism.trace.chunks import join as joined
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.views import JoinedStreams
from determinism.types import Access

Sides = tuple[JoinedStreams, JoinedStreams]


class PairingRule(NamedTuple):
    """One rule for pairing the records that earlier rules left unpaired."""

    equal: tuple[str, ...]
    """What both have in common, besides their place in the program: what they read (`inputs`), also with their `arguments` (`task`), what they
    were `given` from outside their stream, the `arguments`, the `stream`."""
    reason: str


RUNGS = (
    PairingRule(("task",), "equal work on equal inputs, whichever stream was free to do it"),
    PairingRule(("inputs", "stream"), "equal inputs and different arguments: the arguments are the difference"),
    PairingRule(("inputs",), "the same in another stream"),
    PairingRule(
        ("given", "arguments", "stream"),
        "inputs made within the stream may carry a difference; those from outside identify the work",
    ),
    PairingRule(("given", "arguments"), "the same in another stream"),
    PairingRule(("arguments", "stream"), "only their arguments identify them: paired by the order within the stream"),
    PairingRule(("stream",), "the same with different arguments"),
    PairingRule(("arguments",), "the stream that did it has another name, or more of this work, in the other run"),
    PairingRule((), "the same op at the same place"),
)
"""From most in common to least: pairs made by a later rung would hide what an earlier one shows."""


class Partners:
    """Pairs records at the same place in the program: the role, op, module and stack."""

    def __init__(
        self,
        chunks: tuple[Chunk, Chunk],
        processes: Sides,
        canonical: Canonical,
        prints: Sequence[Fingerprints],
        given: Sequence[Array],
    ) -> None:
        """Take the records.

        Args:
            chunks: Those of each run.
            processes: What they were picked from.
            canonical: Numbers for names.
            prints: Per run and record the fingerprints of its place, arguments and inputs.
            given: Per run and record the fingerprint of the inputs from outside its stream.
        """
        self._chunks = chunks
        self._places: list[Array] = []
        arguments: list[Array] = []
        streams: list[Array] = []
        indices: dict[str, int] = {}
        for side, (chunk, process) in enumerate(zip(chunks, processes, strict=True)):
            columns = [chunk.columns["role"].astype(np.int64)]
            for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
                columns.append(numbers[side][chunk.columns[name]].astype(np.int64))
            self._places.append(np.stack(columns, axis=1))
            arguments.append(canonical.arguments[side][chunk.columns["arguments"]].astype(np.int64)[:, None])
            own = np.array([indices.setdefault(stream.key, len(indices)) for stream in process.streams], dtype=np.int64)
            streams.append(own[process.stream_of(chunk.numbers)][:, None])
        self._aspects = {
            "task": [of_side.task.view(np.int64) for of_side in prints],
            "inputs": [_or_nothing(of_side.read.view(np.int64), side) for side, of_side in enumerate(prints)],
            "given": [numbers.view(np.int64) for numbers in given],
            "arguments": arguments,
            "stream": streams,
        }

    def pairing(self, *, across: bool, received: Set[Pair]) -> Pairing:
        """Pair the makers of values that other streams received, then the rest by `RUNGS`; `across` allows pairs of different streams."""
        alone = Pairing(
            np.concatenate([np.arange(self._chunks[0].rows), np.full(self._chunks[1].rows, -1)]),
            np.concatenate([np.full(self._chunks[0].rows, -1), np.arange(self._chunks[1].rows)]),
        )
        made = self._makers(received)
        left, right = [made[:, 0]], [made[:, 1]]
        rest = [np.setdiff1d(np.arange(c.rows), used) for c, used in zip(self._chunks, made.T, strict=True)]
        for keys in self._keys(across=across):
            if not (len(rest[0]) and len(rest[1])):
                break
            at = join(keys[0][rest[0]], keys[1][rest[1]])
            left.append(rest[0][at[0]])
            right.append(rest[1][at[1]])
            rest = [np.delete(rows, used) for rows, used in zip(rest, at, strict=True)]
        nothing = np.zeros(0, dtype=np.int64)
        return repaired(alone, nothing, np.concatenate(left), np.concatenate(right))

    def _keys(self, *, across: bool) -> Iterator[RunPair[Array]]:
        """Yield the keys that pairs must share, rung by rung; they always include the stream unless `across` is set."""
        named = (rung.equal if across or "stream" in rung.equal else (*rung.equal, "stream") for rung in RUNGS)
        # Once the stream is included, some rungs are the same.
        for aspects in dict.fromkeys(named):
            sides = ([self._places[side], *(self._aspects[name][side] for name in aspects)] for side in (0, 1))
            yield RunPair(*(np.concatenate(parts, axis=1) for parts in sides))

    def _makers(self, received: Set[Pair]) -> Array:
        """Return the positions of the records that made received values in both runs, and of what these were made from."""
        if not received:
            return np.zeros((0, 2), dtype=np.int64)
        makers = [_makers(chunk, {pair[side] for pair in received}) for side, chunk in enumerate(self._chunks)]
        sources = [_sources(chunk) for chunk in self._chunks]
        waiting = [
            (mine, other)
            for first, second in sorted(received)
            for mine, other in zip(makers[0].get(first, ()), makers[1].get(second, ()), strict=False)
        ]
        partner: dict[int, int] = {}
        used: set[int] = set()
        while waiting:
            mine, other = waiting.pop()
            if mine in partner or other in used or (self._places[0][mine] != self._places[1][other]).any():
                continue
            partner[mine] = other
            used.add(other)
            read = (_rows_read(self._chunks[side], sources[side], row) for side, row in enumerate((mine, other)))
            waiting += [pair for pair in zip(*read, strict=False) if min(pair) >= 0]
        return np.array(sorted(partner.items()), dtype=np.int64).reshape(-1, 2)


def _or_nothing(read: Array, side: int) -> Array:
    """Return what records read; a unique number for each record that reads nothing."""
    alone = np.stack([np.arange(len(read)), np.full(len(read), side)], axis=1)
    return np.where(read.any(axis=1, keepdims=True), read, alone)


def _makers(chunk: Chunk, wanted: set[bytes]) -> dict[bytes, list[int]]:
    """Return the positions of the records that made outputs with these digests."""
    outputs = chunk.children["outputs"]
    digests = outputs.columns["digest"]
    found: dict[bytes, list[int]] = {}
    for entry in np.flatnonzero(np.isin(digests[:, 0], heads_of(wanted))):
        found.setdefault(digests[entry].tobytes(), []).append(int(outputs.owners[entry]))
    return found


def _sources(chunk: Chunk) -> Array:
    """Return, per input entry, the position of its producer among the records; -1 if that is not one of them."""
    numbers = producers(chunk)
    if not chunk.rows:
        return numbers
    at = np.minimum(np.searchsorted(chunk.numbers, numbers), chunk.rows - 1)
    return np.where(chunk.numbers[at] == numbers, at, -1)


def _rows_read(chunk: Chunk, sources: Array, row: int) -> list[int]:
    return [int(source) for source in sources[chunk.children["inputs"].part(row)]]


# Makes a group of the records that only one run has, so that their differences can be followed.

_EXTERNAL = -1


@dataclass(frozen=True)
class ContentGroup(Group):
    """Records that were paired by what they did; an input is identified by the content its producer left there."""

    contents: RunPair[Array]
    """Per side and input entry a number that identifies this content; -1 for external."""
    second_keys: Keys
    is_unordered: ClassVar[bool] = True

    def reads(self, side: int) -> list[tuple[int, int]]:
        """Return, per input entry of a side, its content and the view."""
        return list(zip(self.contents[side].tolist(), self.layouts[side].tolist(), strict=True))


class Keys(NamedTuple):
    """The keys that both runs share for records of the second run."""

    numbers: Array
    keys: Array

    def of(self, numbers: Array) -> Array:
        """Return the keys of records; -1 stays -1, and a record that was not picked gets a unique key."""
        found = np.where(numbers < 0, -1, -2 - numbers)
        if len(self.numbers):
            at = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
            found = np.where(self.numbers[at] == numbers, self.keys[at], found)
        return np.asarray(found)

    def key(self, number: int) -> int:
        """Return the key of one record."""
        return int(self.of(np.array([number]))[0])


def paired(
    found: Unmatched, processes: Sides, canonical: Canonical, *, across: bool, received: Set[Pair]
) -> ContentGroup:
    """Pair the records that only one run has.

    Args:
        found: The records.
        processes: What they were picked from.
        canonical: Numbers for names.
        across: Whether records of different streams may pair, since work goes to whichever stream is free.
        received: Values that other streams received from these: their makers pair first.
    """
    chunks = RunPair(found.first, found.second)
    contents = [input_contents(chunk, Produced(process)) for chunk, process in zip(chunks, processes, strict=True)]
    prints = [fingerprints(chunk, contents[side][1], canonical, side) for side, chunk in enumerate(chunks)]
    outside = [given(chunk, held) for chunk, (_, held) in zip(chunks, contents, strict=True)]
    partners = Partners(chunks, processes, canonical, prints, outside)
    pairing = partners.pairing(across=across, received=received)
    keys = -2 - _numbers(chunks[1], pairing.second)
    keys = np.where(pairing.first >= 0, _numbers(chunks[0], pairing.first), keys)
    there = pairing.second >= 0
    order = np.argsort(pairing.second[there])
    second_keys = Keys(chunks[1].numbers, keys[there][order])
    known = RunPair(*(_numbers_of_contents(chunk, left) for chunk, (left, _) in zip(chunks, contents, strict=True)))
    views = canonical.views(chunks)
    flags = _flags(chunks, pairing, canonical, known, views)
    sources = RunPair(producers(chunks.first), second_keys.of(producers(chunks.second)))
    return ContentGroup(*chunks, pairing, keys, flags, sources, views, contents=known, second_keys=second_keys)


def _numbers(chunk: Chunk, rows: Array) -> Array:
    """Return the numbers of the records at these positions; arbitrary for position -1."""
    return chunk.numbers[rows] if chunk.rows else np.zeros(len(rows), dtype=np.int64)


def _flags(
    chunks: RunPair[Chunk], pairing: Pairing, canonical: Canonical, contents: RunPair[Array], views: RunPair[Array]
) -> Flags:
    """Return flags as for ordered records, except that an input differs only if its producer left different content."""
    pairs = np.flatnonzero(pairing.are_pairs)
    rows = RunPair(pairing.first[pairs], pairing.second[pairs])
    flags = compare_rows(chunks, rows, canonical, contents)
    inputs = RunPair(*(chunk.children["inputs"] for chunk in chunks))
    accesses = RunPair(*(entries.columns["access"] for entries in inputs))
    edges = lists_differ(inputs, rows, [contents, accesses, views])
    return replace(flags, edges=edges).spread(pairs, len(pairing.first))


def _numbers_of_contents(chunk: Chunk, left: Array) -> Array:
    """Return one number per input entry for what its producer left; 0 for memory that is not read, as its content is irrelevant."""
    inputs = chunk.children["inputs"]
    mixed = (left[:, 0] ^ (left[:, 1] << np.uint64(1))).view(np.int64)
    mixed = np.where(inputs.columns["access"] == Access.READ, mixed, 0)
    return np.where(inputs.columns["producer"] == 0, _EXTERNAL, mixed)


# Finds the random draws behind values that changed places: threads drew in a different order in each run.
#
# All threads draw from one generator. As a multiset their draws are the same in both runs; only the ops that drew
# show that another thread had drawn first.

_MOST_DRAWS = 256


def draw_behind(root: Root, processes: Sides, canonical: Canonical, *, of_same_data: bool) -> Root | None:
    """Find the draws of both runs that a record's inputs, made in its own stream, go back to, if they came from different generator
    states.

    Args:
        root: The record.
        processes: The streams of both runs.
        canonical: What the runs call differently.
        of_same_data: Whether there are none if the records also go back to different data: these are other items, each with its own draws.
    """
    if root.first is None or root.second is None:
        return None
    waiting = [(root.first, root.second)]
    seen: set[tuple[int, int]] = set()
    draws = None
    while waiting and len(seen) < _MOST_DRAWS:
        pair = waiting.pop(0)
        if of_same_data and _take_other_data(*pair):
            return None
        for numbers in _producers(*pair):
            if numbers in seen:
                continue
            seen.add(numbers)
            places = [process.record(number) for process, number in zip(processes, numbers, strict=True)]
            mine, other = (entry_of(process, *place) for process, place in zip(processes, places, strict=True))
            if mine.op != other.op and of_same_data:
                return None
            if mine.op != other.op or mine.outputs == other.outputs:
                continue
            if _state(*places[0]) != _state(*places[1]):
                draws = draws or (places, mine, other)
                if not of_same_data:
                    break
            else:
                waiting.append((mine, other))
        if draws is not None and not of_same_data:
            break
    return None if draws is None else _as_root(*draws, processes, canonical)


def _take_other_data(mine: Entry, other: Entry) -> bool:
    """Whether two records take different values from outside."""
    pairs = zip(mine.inputs, other.inputs, strict=False)
    return any(one.producer < 0 and its.producer < 0 and one.digest != its.digest for one, its in pairs)


def _producers(mine: Entry, other: Entry) -> list[tuple[int, int]]:
    """Return the pairs of records that made the inputs of both."""
    pairs = zip(mine.inputs, other.inputs, strict=False)
    return [(one.producer, its.producer) for one, its in pairs if one.producer >= 0 and its.producer >= 0]


def _state(chunk: Chunk, row: int) -> list[bytes]:
    """Return the states of the generators that a record drew from."""
    return chunk.children["generators"].digests_of(row)


def _as_root(
    places: list[tuple[Chunk, int]], mine: Entry, other: Entry, processes: Sides, canonical: Canonical
) -> Root | None:
    first, second = (pick(chunk, np.array([row])) for chunk, row in places)
    group = paired(Unmatched(first, second, False), processes, canonical, across=True, received=frozenset())
    if len(group.keys) > 1:
        return None
    return Root(0, group, 0, mine, other, group.flags.at(0), reads_unwritten=False, allocation=None, came_in=False)


# Pairs programs that a run started concurrently, whichever of them began to record first.
#
# They have no names, so their keys count them in the order in which they began. Programs started at the same time
# begin in a different order in each run; their arguments, and what they did, show which is which.

_COUNTED = re.compile(r"(?P<part>.+/)?main(?:-\d+)?|(?P<of>.+)\.\d+")
"""Keys that are made by counting: `main`, `main-2`; `main.1`, `main.2`; in a run of several parts also `node-1/main`."""

_Pairs = list[tuple[ProcessTrace, ProcessTrace]]


def pair_siblings(first: Trace, second: Trace) -> None:
    """Rename programs of the second run that were counted in a different order to their keys in the first.

    Raises:
        TraceError: A trace is damaged.
    """
    groups = _groups(first), _groups(second)
    renamed: dict[str, str] = {}
    for parent in groups[0].keys() & groups[1].keys():
        mine, others = groups[0][parent], groups[1][parent]
        if max(len(mine), len(others)) > 1:
            renamed.update(_renamed(_pairs(mine, others), [process.key for process in others]))
    if any(old != new for old, new in renamed.items()):
        _rename(second, renamed)


def alone(trace: Trace) -> list[ProcessTrace]:
    """Return the processes whose keys are the same in every run: neither they nor their ancestors were counted among others."""
    mistakable = {process.key for group in _groups(trace).values() if len(group) > 1 for process in group}
    return [process for process in ordered(trace) if not any(_is_of(process.key, key) for key in mistakable)]


def _is_of(key: str, ancestor: str) -> bool:
    return key == ancestor or key.startswith(f"{ancestor}.")


def _groups(trace: Trace) -> dict[str, list[ProcessTrace]]:
    found: dict[str, list[ProcessTrace]] = {}
    for process in ordered(trace):
        counted = _COUNTED.fullmatch(process.key)
        if counted is not None:
            found.setdefault(counted["of"] or counted["part"] or "", []).append(process)
    return found


def _pairs(mine: Sequence[ProcessTrace], others: Sequence[ProcessTrace]) -> _Pairs:
    """Pair the same program with the same arguments, among several the one that did the same; then those with equal keys."""
    left, right = list(mine), list(others)
    pairs: _Pairs = []

    def pair(is_partner: Callable[[ProcessTrace, ProcessTrace], bool]) -> None:
        for process in list(left):
            likeliest_first = sorted(right, key=lambda other: other.key != process.key)
            partner = next((other for other in likeliest_first if is_partner(process, other)), None)
            if partner is not None:
                pairs.append((process, partner))
                left.remove(process)
                right.remove(partner)

    commands = [tuple(map(_command, side)) for side in (mine, others)]
    if any(len(set(side)) < len(side) for side in commands):
        pair(lambda one, other: _command(one) == _command(other) and _did_the_same(one, other))
    pair(lambda one, other: _command(one) == _command(other) and one.key == other.key)
    pair(lambda one, other: _command(one) == _command(other))
    pair(lambda one, other: one.key == other.key)
    pair(lambda one, other: True)
    return pairs


def _command(process: ProcessTrace) -> str:
    return str(process.description.get("argv"))


def _did_the_same(first: ProcessTrace, second: ProcessTrace) -> bool:
    canonical = Canonical(first, second)
    return total(first, canonical, 0) == total(second, canonical, 1)


def _renamed(pairs: _Pairs, keys: Sequence[str]) -> dict[str, str]:
    """Return the partner's key for each old key; a process without a partner takes a key that is left."""
    renamed = {other.key: process.key for process, other in pairs}
    free = [key for key in keys if key not in renamed.values()]
    for key in keys:
        if key not in renamed:
            renamed[key] = key if key in free else free[0]
            free.remove(renamed[key])
    return renamed


def _rename(trace: Trace, renamed: dict[str, str]) -> None:
    """Rename processes, together with their descendants and parts."""

    def new(key: str) -> str:
        parts = key.split(".")
        for end in range(len(parts), 0, -1):
            found = renamed.get(".".join(parts[:end]))
            if found is not None:
                return ".".join([found, *parts[end:]])
        return key

    for process in trace.processes:
        process.key = new(process.key)
        part_of = process.description.get("part_of")
        if part_of is not None:
            process.description["part_of"] = new(str(part_of))
    trace.processes.sort(key=lambda process: process.key)


# Finds the records of two streams that have no equal anywhere in the other.


_MOST_HELD = 1 << 23
"""Fingerprints that are held at once; for longer streams, the range of values is processed in parts."""
_MOST_RECORDS = 1 << 16


class Unmatched(NamedTuple):
    """The records of each run that the other lacks."""

    first: Chunk
    second: Chunk
    is_partial: bool
    """Whether there are more; then these are the earliest of each stream."""


def unmatched(first: JoinedStreams, second: JoinedStreams, canonical: Canonical) -> Unmatched | None:
    """Compare two streams as multisets of what their records did.

    Memory use does not grow with the length of the streams; if they differ, their records are read several times.

    Returns:
        None if every record has an equal in the other run.
    """
    processes = (first, second)
    totals = [total(process, canonical, side) for side, process in enumerate(processes)]
    if totals[0] == totals[1]:
        return None
    parts = -(-max(rows for rows, _ in totals) // _MOST_HELD)
    numbers: list[list[Array]] = [[], []]
    for part in range(parts):
        held = [_part(process, canonical, side, part, parts) for side, process in enumerate(processes)]
        for side, ((own, prints), (_, others)) in enumerate((held, held[::-1])):
            numbers[side].append(own[_without_equal(prints, others)])
    found = [np.sort(np.concatenate(side)) for side in numbers]
    kept = [_earliest(process, of_side) for process, of_side in zip(processes, found, strict=True)]
    chunks = [_picked(process, of_side) for process, of_side in zip(processes, kept, strict=True)]
    some = chunks[0] or chunks[1]
    if some is None:
        return None
    nothing = cut(some, 0, 0)
    is_partial = any(len(all_found) > len(few) for all_found, few in zip(found, kept, strict=True))
    return Unmatched(chunks[0] or nothing, chunks[1] or nothing, is_partial)


def _part(process: JoinedStreams, canonical: Canonical, side: int, part: int, parts: int) -> tuple[Array, Array]:
    """Return the numbers and fingerprints of the records whose fingerprint is in one part of the range."""
    numbers, found = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.uint64)]
    for chunk, counted, prints in stream_fingerprints(process, canonical, side):
        chosen = prints[:, 1] % np.uint64(parts) == part
        numbers.append(chunk.numbers[counted[chosen]])
        found.append(prints[chosen, 0])
    return np.concatenate(numbers), np.concatenate(found)


def _without_equal(prints: Array, others: Array) -> Array:
    """Return the positions of the fingerprints that the others lack; among equal ones, the last are the surplus."""
    order = np.argsort(prints, kind="stable")
    ordered, others = prints[order], np.sort(others)
    occurrence = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    equal = np.searchsorted(others, ordered, side="right") - np.searchsorted(others, ordered, side="left")
    return np.asarray(order[occurrence >= equal])


def _earliest(process: JoinedStreams, numbers: Array) -> Array:
    """Return as many records as can be followed: the earliest of each stream, so that their producers are included."""
    if len(numbers) <= _MOST_RECORDS:
        return numbers
    stream = process.stream_of(numbers)
    within = np.arange(len(numbers)) - np.searchsorted(stream, stream, side="left")
    return np.asarray(numbers[within < _MOST_RECORDS // len(np.unique(stream))])


def _picked(process: JoinedStreams, numbers: Array) -> Chunk | None:
    """Return these records; None if there are none."""
    found = []
    for chunk in process.chunks():
        low, high = np.searchsorted(numbers, [chunk.first, chunk.first + chunk.rows])
        if low < high:
            found.append(pick(chunk, numbers[low:high] - chunk.first))
    return joined(found) if found else None

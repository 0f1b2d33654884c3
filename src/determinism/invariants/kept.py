"""Checks that what is kept elsewhere comes back as it was: shards of parameters on other ranks, and tensors in files.

Both are marked where a run was recorded with its invariants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from determinism.comparison.records import Entry, Input, entry_of
from determinism.invariants.findings import FILES, SHARDS, InvariantFindings, Violation, rank_of, ranks_of
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import GATHERED_OP, LOADED_OP, SAVED_OP, Frame, Table
from determinism.types import NO_DIGEST, Stream


class _Marked(NamedTuple):
    """A record of something that is kept, and where the program asked for it."""

    process: ProcessTrace
    entry: Entry
    said: dict[str, Any]
    """Its arguments."""
    site: Frame | None


def _marked(process: ProcessTrace, *ops: str) -> Iterator[_Marked]:
    """The records of some sorts, in order; one whose arguments are damaged is passed over."""
    names = process.names.texts(Table.OP)
    wanted = {number for number, name in enumerate(names) if name in ops}
    if not wanted:
        return
    for chunk in process.chunks():
        for row, op in enumerate(chunk.columns["op"].tolist()):
            if op not in wanted:
                continue
            entry = entry_of(process, chunk, row)
            try:
                said = json.loads(entry.arguments)
            except (ValueError, RecursionError):
                continue
            stack = process.names.stack(int(chunk.columns["stack"][row]))
            if isinstance(said, dict):
                yield _Marked(process, entry, said, stack[0] if stack else None)


def check_shards(trace: Trace, findings: InvariantFindings) -> None:
    """Compare what modules computed with, of parameters that are kept in shards, with the shards of all ranks.

    Args:
        trace: Of one run.
        findings: Where violations and numbers are added.

    Raises:
        TraceError: It is damaged.
    """
    ranks = ranks_of(trace)
    is_reported = False
    for gathered in zip(*(_marked(process, GATHERED_OP) for process in ranks.values()), strict=False):
        by_rank = dict(zip(ranks, gathered, strict=True))
        name = str(gathered[0].said.get("name"))
        if any(one.said.get("name") != name for one in gathered):
            return  # The ranks did not call the same modules.
        findings.compared[SHARDS] += 1
        wrong = [(rank, other) for rank, one in by_rank.items() for other in _other_values(rank, one, by_rank)]
        if wrong and not is_reported:
            is_reported = True
            ranks_apart = tuple(dict.fromkeys(rank for rank, _ in wrong))
            others = tuple(sorted({other for _, other in wrong}))
            mark = by_rank[ranks_apart[0]]
            findings.violations.append(
                Violation(SHARDS, mark.entry.step, ranks_apart, others, f"parameter {name}", site=mark.site)
            )


def _other_values(rank: int, one: _Marked, by_rank: dict[int, _Marked]) -> Iterator[int]:
    """The ranks whose shard is not what a rank had of it."""
    members = one.said.get("ranks")
    if not isinstance(members, list) or rank not in members:
        return
    for place, (member, part) in enumerate(zip(members, one.entry.inputs[1:], strict=False)):
        keeper = by_rank.get(member) if type(member) is int else None
        if keeper is None or keeper.said.get("ranks") != members:
            continue
        shard, theirs = keeper.entry.inputs[0], keeper.entry.inputs[1 + place]
        # With mixed precision what is gathered has another type, which must still be the same on all ranks.
        kept = shard if _form(shard) == _form(part) else theirs
        if part.digest != kept.digest and NO_DIGEST not in (part.digest, kept.digest):
            yield member


def _form(value: Input) -> tuple[Any, ...]:
    return () if value.layout is None else (value.layout.dtype, value.layout.shape)


def check_files(trace: Trace, findings: InvariantFindings) -> None:
    """Compare what files gave when they were loaded with what was saved to them in the same run.

    A file that the process saved itself must give what it saved last. One that only others saved must give what one of them saved.

    Args:
        trace: Of one run.
        findings: Where violations and numbers are added.

    Raises:
        TraceError: It is damaged.
    """
    if not any(LOADED_OP in process.names.texts(Table.OP) for process in trace.processes):
        return
    saved: dict[str, list[_Marked]] = {}
    for process in trace.processes:
        for mark in _marked(process, SAVED_OP):
            saved.setdefault(str(mark.said.get("file")), []).append(mark)
    reported: set[tuple[str, Frame | None]] = set()
    for process in trace.processes:
        for mark in _marked(process, LOADED_OP):
            file = str(mark.said.get("file"))
            candidates = _candidates(mark, saved.get(file, ()))
            if not candidates:
                continue
            findings.compared[FILES] += 1
            if any(_digests(mark) == _digests(candidate) for candidate in candidates):
                continue
            if (file, mark.site) not in reported:
                reported.add((file, mark.site))
                findings.violations.append(_wrong_file(file, mark, candidates[-1]))


def _candidates(loaded: _Marked, saved: Sequence[_Marked]) -> list[_Marked]:
    """What a file may give: what threads of the process saved, and what it saved last itself; else what others did."""
    key = loaded.process.key
    own = [one for one in saved if one.process.key == key and one.entry.number < loaded.entry.number]
    threads = [
        one
        for one in saved
        if one.process.description.get("stream") == Stream.THREADS and one.process.description.get("part_of") == key
    ]
    return [*threads, *own[-1:]] or [one for one in saved if one.process.key != key]


def _digests(mark: _Marked) -> list[bytes | None]:
    return [one.digest for one in mark.entry.inputs]


def _wrong_file(file: str, loaded: _Marked, saved: _Marked) -> Violation:
    names, known = loaded.said.get("names"), _digests(saved)
    names = [str(name) for name in names] if isinstance(names, list) else []
    differing = [
        name
        for place, (name, digest) in enumerate(zip(names, _digests(loaded), strict=False))
        if place >= len(known) or digest != known[place]
    ]
    rank = rank_of(loaded.process)
    return Violation(
        FILES, loaded.entry.step, () if rank is None else (rank,), (), file, tuple(differing), site=loaded.site,
        asked_at=saved.site, process=loaded.process.key,
    )  # fmt: skip

"""Which streams of two runs are compared with each other: in order, or as a multiset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from determinism.trace.reader import ProcessTrace, Trace
from determinism.types import Stream


@dataclass
class Streams:
    """Unordered streams of both runs that belong together; a run may have none of them."""

    stream: Stream
    part_of: str
    first: list[ProcessTrace] = field(default_factory=list)
    second: list[ProcessTrace] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What to call them together."""
        return f"{self.part_of}, {self.stream}"

    @property
    def some(self) -> ProcessTrace:
        """One of them."""
        return (self.first or self.second)[0]

    @property
    def started(self) -> float:
        """When the first of them began to record, in seconds since 1970."""
        return min(float(stream.description.get("started") or 0.0) for stream in self.first or self.second)


def stream_of(process: ProcessTrace) -> Stream:
    """Which order the records of a stream have."""
    return Stream(process.description.get("stream") or Stream.PROCESS)


def reported_process(process: ProcessTrace) -> str:
    """Key of the process that a stream is of."""
    is_own = stream_of(process) is not Stream.THREADS
    return process.key if is_own else str(process.description.get("part_of") or process.key)


def ordered(trace: Trace) -> list[ProcessTrace]:
    """The processes whose records come in the order of the program."""
    return [process for process in trace.processes if stream_of(process) is Stream.PROCESS]


def unordered(first: Trace, second: Trace) -> Sequence[Streams]:
    """The streams whose records are a multiset, by what they belong to."""
    found: dict[tuple[str, Stream], Streams] = {}
    for side, trace in enumerate((first, second)):
        for process in trace.processes:
            stream = stream_of(process)
            if stream is Stream.PROCESS:
                continue
            part_of = str(process.description.get("part_of") or process.key)
            streams = found.setdefault((part_of, stream), Streams(stream, part_of))
            (streams.first, streams.second)[side].append(process)
    return [found[key] for key in sorted(found)]

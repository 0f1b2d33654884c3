"""Several streams that are read as one process have the properties of one process."""

from __future__ import annotations

from pathlib import Path

from determinism.trace.opening import open_trace
from determinism.trace.schema import Meaning
from determinism.trace.views import JoinedStreams
from tests.traces import TraceBuilder


def joined(folder: Path) -> JoinedStreams:
    """Two streams of three and two records, each with a final record in addition."""
    builder = TraceBuilder(folder)
    other = builder.beside("other")
    for stream, count in ((builder, 3), (other, 2)):
        for number in range(count):
            stream.add("aten::add", [], [f"value {number}"])
        stream.number(Meaning.READ, 0.5, count - 1)
    builder.close()
    streams = open_trace(folder).processes
    assert [stream.extent[0] for stream in streams] == [4, 3]
    return JoinedStreams("both", streams)


def records(process: JoinedStreams) -> int:
    return sum(chunk.rows for chunk in process.chunks())


def test_the_extent_covers_all_streams(tmp_path: Path) -> None:
    both = joined(tmp_path / "trace")
    assert (both.extent[0], records(both), both.truncated, both.stopped_by) == (7, 7, False, None)


def test_numbers_belong_to_the_records_of_all_streams(tmp_path: Path) -> None:
    assert joined(tmp_path / "trace").numbers["record"].tolist() == [2, 4 + 1]


def test_a_limit_keeps_the_first_records_of_all_streams(tmp_path: Path) -> None:
    both = joined(tmp_path / "trace")
    assert [records(both.until(limit)) for limit in (0, 3, 4, 6, 9)] == [0, 3, 4, 6, 7]


def test_damage_to_one_stream_is_damage_to_all(tmp_path: Path) -> None:
    both = joined(tmp_path / "trace")
    file = both.streams[1].folder / "records.arrow"
    file.write_bytes(file.read_bytes()[:-200])
    records(both)
    assert both.truncated


def test_no_streams_are_an_empty_process() -> None:
    none = JoinedStreams("none", [])
    assert (none.extent, list(none.chunks()), none.numbers.size, none.stopped_by) == ((0, 0), [], 0, None)


def test_an_interrupted_pass_forgets_nothing_that_an_earlier_one_has_seen(tmp_path: Path) -> None:
    process = joined(tmp_path)
    total = records(process)
    places = [process.place(number) for number in range(total)]
    next(iter(process.chunks()))
    assert [process.place(number) for number in range(total)] == places
    assert places[-1][0] == len(process.streams) - 1

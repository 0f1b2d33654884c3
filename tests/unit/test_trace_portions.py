"""Records are read in portions of any requested size, whatever batches they were written in."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import determinism
from determinism.trace.chunks import Chunk, RecordReader, join
from tests.traces import TraceBuilder, chunk_of, process_of

RECORDS = 40


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder(tmp_path / "trace")
    for number in range(RECORDS):
        builder.add(f"op::{number}", [number - 1] * (number % 3), [f"{number} {i}" for i in range(number % 4)])
        if number % 7 == 6:
            builder._writer.flush()
    return builder.close()


def same(first: Chunk, second: Chunk) -> bool:
    return (first.first, first.rows) == (second.first, second.rows) and all(
        np.array_equal(left, right)
        for mine, other in (
            (first.columns, second.columns),
            *((first.children[g].columns, second.children[g].columns) for g in first.children),
            *(({"": first.children[g].starts}, {"": second.children[g].starts}) for g in first.children),
        )
        for left, right in zip(mine.values(), other.values(), strict=True)
    )


@pytest.mark.parametrize("seed", range(10))
def test_portions_join_to_the_whole(seed: int, trace: Path) -> None:
    process = process_of(trace)
    chance = random.Random(seed)
    reader = process.reader()
    portions: list[Chunk] = []
    while True:
        wanted = chance.randrange(1, 20)
        portion = reader.at_hand() if chance.random() < 0.4 else reader.peek(wanted)
        if portion is None:
            break
        passed = chance.randrange(1, portion.rows + 1)
        again = reader.peek(passed)
        assert again is not None and again.rows == passed
        reader.advance(passed)
        portions.append(again)
    assert reader.at_hand() is None and reader.peek(1) is None
    assert same(join(portions), chunk_of(process))


def test_a_portion_has_the_requested_size_until_the_end(trace: Path) -> None:
    reader: RecordReader = process_of(trace).reader()
    portion = reader.peek(RECORDS)
    assert portion is not None and portion.rows == RECORDS
    rest = reader.peek(10 * RECORDS)
    assert rest is not None and rest.rows == RECORDS + 1


def test_nothing_is_read_beyond_the_current_batch(trace: Path) -> None:
    process = process_of(trace)
    reader = process.reader()
    portion = reader.at_hand()
    assert portion is not None and portion.rows == 7
    assert len(process._firsts) == 1


def test_reading_does_not_import_pandas(trace: Path, tmp_path: Path) -> None:
    """The import takes seconds, and Arrow imports pandas to convert numbers if it is installed."""
    (tmp_path / "pandas.py").write_text("print('imported')\n", encoding="utf-8")
    reading = (
        "from pathlib import Path\n"
        "from determinism.trace.opening import open_trace\n"
        f"(process,) = open_trace(Path({str(trace)!r})).processes\n"
        "print(sum(chunk.rows for chunk in process.chunks()))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(determinism.__file__).parents[1])]),
    }
    ended = subprocess.run([sys.executable, "-c", reading], env=environment, capture_output=True, check=True, text=True)

    assert ended.stdout.split() == [str(RECORDS + 1)]  # plus the end of the process

"""Traces that fsspec reads in place: the same report, without a copy of their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

from determinism.__main__ import command
from determinism.comparison.executors import pairs_over
from determinism.comparison.result import Comparison
from determinism.errors import DeterminismError
from determinism.report.document import document, json_text
from determinism.session.check import compare, compare_over
from determinism.trace import opening
from determinism.trace.files import FileParts, stored_bytes
from determinism.trace.opening import open_trace, trace_folder
from determinism.trace.schema import RECORDS_FILE, STEP_OP
from determinism.types import Role
from tests.traces import TraceBuilder

SOME = 20_000
"""The number of records in a trace, which make its records file much larger than the others."""


def trace(folder: Path, *, differs_at: int | None = None) -> Path:
    """Write a run that differs from others from record `differs_at` on."""
    process = TraceBuilder(folder)
    made = process.add("aten::ones")
    for number in range(SOME):
        value = "other" if differs_at is not None and number >= differs_at else "value"
        made = process.add("aten::mul", (made,), (f"{value} {number}",))
        if number % 100 == 99:
            process.add(STEP_OP, (made,), (), role=Role.STATE, site=None, arguments='[["parameter", "w"]]')
            process._step += 1
    return process.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return trace(folder / "one"), trace(folder / "other", differs_at=15_000)


@pytest.fixture
def stored(runs: tuple[Path, Path]) -> Any:
    """The URLs of both runs in an in-memory store."""
    system = fsspec.filesystem("memory")
    for run in runs:
        system.put(str(run), f"/runs/{run.name}", recursive=True)
    yield [f"memory://runs/{run.name}" for run in runs]
    system.rm("/runs", recursive=True)
    opening._folders.clear()


def without_places(found: Comparison) -> str:
    """Return the report without the locations of the traces."""
    text = json_text(document(found))
    for number, run in enumerate(found.runs):
        place = str(run.trace)
        text = text.replace(place, f"trace {number}").replace(place.rpartition("/")[0], "folder")
    return text


def test_the_report_equals_that_of_local_traces(runs: tuple[Path, Path], stored: list[str]) -> None:
    found = compare(*stored)

    assert without_places(found) == without_places(compare(*runs))
    assert found.first_divergence is not None and found.first_divergence.record > 15_000
    assert [run.trace for run in found.runs] == stored


def test_records_are_not_copied(runs: tuple[Path, Path], stored: list[str]) -> None:
    folder = trace_folder(stored[0])
    compare(*stored)

    records = folder / "processes" / "main" / RECORDS_FILE
    original = runs[0] / "processes" / "main" / RECORDS_FILE
    copied = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert (records.stat().st_size, stored_bytes(records)) == (0, original.stat().st_size)
    assert copied < original.stat().st_size / 4


def test_single_remote_records_equal_local_ones(runs: tuple[Path, Path], stored: list[str]) -> None:
    (process,) = open_trace(trace_folder(stored[0])).processes
    (here,) = open_trace(runs[0]).processes

    for number in (0, SOME // 2, SOME):
        (chunk, row), (same, place) = process.record(number), here.record(number)
        assert chunk.children["outputs"].digests_of(row) == same.children["outputs"].digests_of(place)


def test_other_processes_can_read_remote_traces(runs: tuple[Path, Path]) -> None:
    urls = [f"file://{run}" for run in runs]

    with pairs_over(2, None) as pairs:
        found = compare_over(pairs, *urls)

    assert without_places(found) == without_places(compare(*runs))


def test_commands_take_urls(runs: tuple[Path, Path], stored: list[str]) -> None:
    assert CliRunner().invoke(command(), ["compare", *stored]).exit_code == 1
    shown = CliRunner().invoke(command(), ["show", stored[0]])
    assert shown.exit_code == 0 and stored[0] in shown.output and "records" in shown.output


@pytest.mark.parametrize(
    ("url", "identifier"),
    [
        ("memory://nothing", "trace-missing"),
        ("nosuchstore://bucket/run", "fsspec-missing"),
        ("file:///nothing/at/all", "trace-missing"),
    ],
)
def test_urls_that_cannot_be_opened_are_refused(url: str, identifier: str) -> None:
    with pytest.raises(DeterminismError) as raised:
        trace_folder(url)

    assert raised.value.identifier == identifier
    assert url in str(raised.value)


def test_messages_name_the_url_of_a_damaged_trace(stored: list[str]) -> None:
    fsspec.filesystem("memory").pipe("/runs/one/manifest.json", b"[1, 2]")
    said = CliRunner().invoke(command(), ["compare", *stored])
    assert said.exit_code == 2
    assert f"{stored[0]}/manifest.json holds" in said.output and "/determinism-" not in said.output


class Hostile:
    """A file system that lists files outside the trace, and fails."""

    def find(self, root: str, detail: bool) -> dict[str, Any]:
        return {f"{root}/../outside": {"size": 1}, "/elsewhere": {"size": 1}, f"{root}/manifest.json": {"size": 1}}

    def open(self, name: str, mode: str) -> Any:
        if not name.endswith("manifest.json") or ".." in name:
            raise AssertionError(f"{name} was opened")
        raise ConnectionError("the store is down")


def test_nothing_outside_the_trace_is_opened_and_failures_of_a_store_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "_file_system", lambda url: opening._Files(url, Hostile(), "/bucket/run"))

    with pytest.raises(DeterminismError) as raised:
        trace_folder("s3://bucket/run")

    assert raised.value.identifier == "trace-unreachable"
    assert "the store is down" in str(raised.value)


def test_a_file_may_be_read_in_smaller_pieces_than_requested(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores and network file systems may return fewer bytes; no more are read than belong to a message."""
    whole = json_text(document(compare(*runs)))
    read_at = FileParts.read_at
    asked: list[int] = []

    def in_pieces(file: FileParts, offset: int, size: int) -> bytes:
        asked.append(offset + size)
        assert offset + size <= file.size
        return read_at(file, offset, min(size, 50_000))

    monkeypatch.setattr(FileParts, "read_at", in_pieces)
    assert json_text(document(compare(*runs))) == whole
    assert len(asked) > len(set(asked))

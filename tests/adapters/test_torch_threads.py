"""Ops in threads: it is noted whether another thread wrote to their tensors while they ran."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import determinism
from determinism.comparison.runs import compare
from determinism.diagnose.confirm import MOST_BYTES, capture_request
from determinism.frameworks.torch.evidence import Capture
from determinism.trace.opening import open_trace
from determinism.trace.schema import Table
from determinism.types import Kind
from tests.builders import make_divergence
from tests.torch_captures import Captured

Meanwhile = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True, params=["python", pytest.param("native", marks=pytest.mark.native_recorder)])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with each recorder."""
    monkeypatch.setenv("DETERMINISM_RECORDER", request.param)


def in_a_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work, name="beside")
    thread.start()
    thread.join()


@pytest.fixture
def slow_op() -> Iterator[tuple[Any, list[Callable[[], None]], Callable[[], None]]]:
    """Ops that add up their input, the actions to take while they run, and a function that makes them give a different result."""
    meanwhile: list[Callable[[], None]] = []
    extra: dict[str, float] = {}

    def add_up(values: torch.Tensor) -> torch.Tensor:
        if meanwhile:
            # In another thread, so that the action is not part of this op.
            in_a_thread(meanwhile.pop())
        return values.sum() + extra.get("amount", 0)

    def change(values: torch.Tensor) -> torch.Tensor:
        made = add_up(values)
        values.numpy()[0] += 1
        return made

    with torch.library._scoped_library("determinism_test", "DEF") as library:
        library.define("add_up(Tensor values) -> Tensor")
        library.impl("add_up", add_up, "CPU")
        library.define("change(Tensor(a!) values) -> Tensor")
        library.impl("change", change, "CPU")
        yield torch.ops.determinism_test, meanwhile, lambda: extra.update(amount=1)


def write_by_an_op(values: torch.Tensor) -> None:
    values.add_(1)


def write_by_numpy(values: torch.Tensor) -> None:
    values.numpy()[1] = 7


def read(values: torch.Tensor) -> None:
    values.exp()


def noted(trace: Path, stream: str = "main.threads") -> list[str] | None:
    """The ops of the records that overlapped with a write by another thread."""
    process = next(one for one in open_trace(trace).processes if one.key == stream)
    numbers = process.description.get("overlapped")
    if numbers is None:
        return None
    found = []
    list(process.chunks())
    for number in numbers:
        chunk, row = process.record(number)
        found.append(process.names.text(Table.OP, int(chunk.columns["op"][row])) or "")
    return found


@pytest.mark.parametrize("op", ["add_up", "change"])
@pytest.mark.parametrize(
    ("meanwhile", "is_noted"), [(write_by_an_op, True), (write_by_numpy, True), (read, False), (None, False)]
)
def test_a_write_by_another_thread_while_an_op_runs_is_noted(
    slow_op: Any, op: str, meanwhile: Meanwhile | None, is_noted: bool, tmp_path: Path
) -> None:
    ops, happening, _ = slow_op
    if (op, meanwhile) == ("change", write_by_numpy):
        pytest.skip("of what an op writes itself only records show that another one wrote it")
    values = torch.arange(4.0)
    with determinism.record(tmp_path / "trace"):
        if meanwhile is not None:
            happening.append(lambda: meanwhile(values))
        in_a_thread(lambda: getattr(ops, op)(values))
    assert (noted(tmp_path / "trace") or [None]) == ([f"determinism_test::{op}"] if is_noted else [None])


def test_an_overlapping_write_is_noted_for_the_main_thread_too(slow_op: Any, tmp_path: Path) -> None:
    ops, happening, _ = slow_op
    with determinism.record(tmp_path / "trace"):
        values = torch.arange(4.0)
        in_a_thread(lambda: values.add_(1))
        ops.add_up(values)
        happening.append(lambda: write_by_numpy(values))
        ops.add_up(values)
    assert noted(tmp_path / "trace", "main") == ["determinism_test::add_up"]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_different_result_of_equal_inputs_is_a_race_only_if_a_thread_wrote(
    slow_op: Any, overlaps: bool, tmp_path: Path
) -> None:
    """Both runs digest the same inputs; in the second, the op reads different values, or varies by itself."""
    ops, happening, vary = slow_op

    def run(trace: Path, *, is_first: bool) -> Path:
        values, results = torch.arange(4.0), []
        with determinism.record(trace):
            if not is_first:
                happening.append(lambda: write_by_numpy(values) if overlaps else vary())
            in_a_thread(lambda: results.append(ops.add_up(values) * 1))
            results[0].tolist()
        return trace

    first = run(tmp_path / "1", is_first=True)
    second = run(tmp_path / "2", is_first=False)
    found = compare(first, second).first_divergence
    assert found is not None
    assert (found.op, found.kind) == ("determinism_test::add_up", Kind.MUTATION if overlaps else Kind.OP)


@pytest.mark.parametrize("line", ["the one that is wanted", "another one"])
def test_a_record_of_a_thread_is_found_again_by_its_line_and_inputs(line: str, tmp_path: Path) -> None:
    ended = []

    def finish(reason: str) -> None:
        ended.append(reason)
        raise Captured(reason)

    def work() -> None:
        small, large = torch.ones(3), torch.ones(5)
        small.sin()
        large.cos()
        large.sin()

    with determinism.record(tmp_path / "trace"):
        in_a_thread(work)
    process = next(one for one in open_trace(tmp_path / "trace").processes if one.key == "main.threads")
    chunk = next(process.chunks())
    wanted = [n for n in range(chunk.rows) if process.names.text(Table.OP, int(chunk.columns["op"][n])) == "aten::sin"]
    site = process.names.stack(int(chunk.columns["stack"][wanted[1]]))[0]
    if line == "another one":
        site = site._replace(line=1)
    divergence = make_divergence(op="aten::sin", record=wanted[1], stream="main.threads", thread="beside", site=site)
    request = capture_request(process, divergence, repeats=5, most_bytes=MOST_BYTES)
    with determinism.record(tmp_path / "again") as session:
        folder = session.writer.folder.with_name("main.threads")
        session.recorder.capture = Capture(request, folder, finish)
        thread = threading.Thread(target=work)
        threading.excepthook, before = (lambda args: None), threading.excepthook
        thread.start()
        thread.join()
        threading.excepthook = before
    if line == "another one":
        assert ended == []
    else:
        (output,) = json.loads((folder / "capture.json").read_text())["outputs"]
        assert (ended, output["distinct"]) == (["captured"], 1)


@pytest.mark.parametrize("reads", ["numpy", "item"])
def test_a_difference_made_in_a_thread_and_read_later_is_not_absorbed(reads: str, tmp_path: Path) -> None:
    def program(value: float) -> None:
        weight, given = torch.zeros(4), torch.frombuffer(bytearray(4), dtype=torch.float32)
        given.numpy()[:] = value
        in_a_thread(lambda: weight.add_(given))
        weight.numpy().sum() if reads == "numpy" else weight[0].item()

    for run, value in enumerate((1.0, 2.0)):
        with determinism.record(tmp_path / f"{run}"):
            program(value)

    comparison = compare(tmp_path / "0", tmp_path / "1")
    assert not comparison.absorbed
    assert comparison.first_visible is not None and comparison.first_visible.what == f"value read by {reads}()"

"""Record whole programs with digests that arrive late, from a simulated GPU: nothing else changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import determinism
from determinism.comparison.records import read_unwritten
from determinism.device_digest import ALGORITHM
from determinism.errors import UsageError
from determinism.frameworks.torch import session
from determinism.frameworks.torch.device_digests import DeviceDigests
from determinism.frameworks.torch.hooks import watch_captures
from determinism.run_spec import RECORDER_VARIABLE
from determinism.trace.opening import open_trace
from determinism.types import NO_DIGEST, Kind, Role, Verdict
from tests.torch_runs import check_deterministic, compare_program, only, record_rows, recorded, rows, rows_of_all
from tests.torch_slow_device import SlowDevice, expected, slow_devices

Use = Callable[..., SlowDevice]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Make recordings treat tensors of the CPU as those of a slow device."""

    def using(device: SlowDevice | None = None, **sizes: int) -> SlowDevice:
        device = device or SlowDevice()
        monkeypatch.setattr(session, "DeviceDigests", lambda: slow_devices(device, **sizes))
        return device

    return using


def training() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss, [*model.parameters()]


def test_a_training_run_is_the_same_as_itself_and_as_without_recording(use: Use, tmp_path: Path) -> None:
    device = use()
    comparison = check_deterministic(training, tmp_path)
    assert comparison.verdict is Verdict.SAME
    assert not comparison.recorded.blind_spots
    # All results of an op, here of a foreach op, are digested by one launch.
    assert max(device.launches) >= 6


def test_records_have_the_same_order_and_edges_as_without_a_device(use: Use, tmp_path: Path) -> None:
    plain = record_rows(training, tmp_path / "plain")
    use()
    late = record_rows(training, tmp_path / "late")
    facts = [
        [(row.op, row.module, row.step, row.phase, row.producers, row.forward, row.arguments) for row in found]
        for found in (plain, late)
    ]
    assert facts[0] == facts[1]
    # A digest is missing in both or in neither, and digests that are equal in one are equal in the other.
    pairs = {
        pair
        for a, b in zip(plain, late, strict=True)
        if a.role is not Role.ESCAPE
        for pair in zip(a.digests, b.digests, strict=True)
    }
    assert len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs) > 100
    assert all((one == NO_DIGEST) == (other == NO_DIGEST) for one, other in pairs)


@pytest.mark.native_recorder
def test_both_recorders_write_the_same_records_and_the_native_one_queues_digests_itself(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> Any:
        gaps = torch.ones(6, 7)[:, 1:].exp_().t()
        return training(), gaps.mul(2)[::2].sum().item()

    found, queued = {}, {}
    for recorder in ("python", "native"):
        monkeypatch.setenv(RECORDER_VARIABLE, recorder)
        device = use(entries=32)
        found[recorder] = record_rows(program, tmp_path / recorder)
        queued[recorder] = device.num_queued / len(device.launches)
    assert [vars(row) for row in found["native"]] == [vars(row) for row in found["python"]]
    assert queued["python"] == 0
    # All but the launches that verify it.
    assert queued["native"] > 0.9


@pytest.mark.native_recorder
def test_threads_that_record_at_the_same_time_use_separate_entries(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORDER_VARIABLE, "native")
    use(SlowDevice(looks=1), batches=2, entries=8)

    def count(start: int) -> None:
        x = torch.full((5,), float(start))
        for _ in range(100):
            x.add_(1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with determinism.record(tmp_path / "trace"):
            threads = [threading.Thread(target=count, args=(1000 * number,)) for number in range(1, 4)]
            for thread in threads:
                thread.start()
            count(0)
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    found = [row.digests[0] for row in rows_of_all(tmp_path / "trace") if row.op.startswith("add_")]
    wanted = [
        expected(torch.full((5,), float(1000 * number + value))) for number in range(4) for value in range(1, 101)
    ]
    assert sorted(found) == sorted(wanted)


def test_a_result_is_digested_before_the_next_op_overwrites_it(use: Use, tmp_path: Path) -> None:
    use(SlowDevice(looks=1_000_000), batches=2, entries=16)
    values = [torch.full((5,), float(n)) for n in range(1, 101)]

    def program() -> Any:
        x = torch.zeros(5)
        for _ in range(100):
            x.add_(1)
        return x

    found = [row for row in record_rows(program, tmp_path) if row.op.startswith("add_")]
    assert [row.digests for row in found] == [[expected(value)] for value in values]


def test_an_argument_that_varies_is_found(use: Use, tmp_path: Path) -> None:
    use()
    runs = iter((1.0, 2.0))

    def program() -> Any:
        return torch.ones(100).exp().mul(next(runs)).sin()

    comparison = compare_program(program, tmp_path)
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.kind is Kind.ARGUMENT


def test_other_threads_and_all_levels_are_recorded(use: Use, tmp_path: Path) -> None:
    use(entries=8)

    def program() -> Any:
        result = training()
        others = []
        for number in range(2):
            thread = threading.Thread(target=lambda at=number: others.append(torch.ones(9).mul(at).sin().sum()))
            thread.start()
            thread.join()
        return result, others

    assert check_deterministic(program, tmp_path).verdict is Verdict.SAME
    for level in ("step", "module"):
        traces = [tmp_path / f"{level}-{run}" for run in range(2)]
        for trace in traces:
            with determinism.record(trace, level=level):
                training()
        comparison = determinism.compare(*traces)
        assert comparison.verdict is Verdict.SAME
        assert comparison.recorded.steps == 3
        assert not comparison.recorded.blind_spots


def test_a_step_is_in_the_trace_soon_after_it_ended(use: Use, tmp_path: Path) -> None:
    use(SlowDevice(looks=2))
    with determinism.record(tmp_path / "trace"):
        training()
        for _ in range(4):
            torch.ones(1)
        steps = open_trace(tmp_path / "trace").processes[0].extent[1]
    # The current step is counted as well once it has a record.
    assert steps >= 2


def test_the_device_is_not_used_while_a_graph_is_captured(use: Use, tmp_path: Path) -> None:
    device = use()

    class Graph:
        def capture_begin(self) -> None:
            assert not device._busy, "a digest was still on its way"

        def capture_end(self) -> None:
            pass

        def replay(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        with determinism.record(tmp_path / "trace"):
            torch.ones(3).exp()
            graph = Graph()
            graph.capture_begin()
            before = len(device.launches), device.num_fetches
            torch.ones(3).sin()
            assert (len(device.launches), device.num_fetches) == before
            graph.capture_end()
            torch.ones(3).cos()
    found = rows(tmp_path / "trace")
    assert only(found, "exp").digests != [NO_DIGEST]
    assert only(found, "sin").digests == [NO_DIGEST]
    assert only(found, "cos").digests != [NO_DIGEST]
    process = open_trace(tmp_path / "trace").processes[0]
    (spot,) = process.description["blind_spots"]
    assert (spot["id"], spot["what"]) == ("cuda-graph", "ops that are captured into a CUDA graph")
    # `ones` has no digest either, but its memory was written.
    assert read_unwritten(process) is None


def test_without_a_kernel_tensors_are_copied_and_the_report_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(device: torch.device) -> Any:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(session, "DeviceDigests", lambda: DeviceDigests(missing, lambda _: False, "cpu"))
    comparison = check_deterministic(training, tmp_path / "copied")
    assert comparison.verdict is Verdict.SAME
    (spot,) = comparison.recorded.blind_spots
    assert spot.identifier == "host-digests"
    assert "No module named 'triton'" in spot.reason
    monkeypatch.undo()
    plain = record_rows(training, tmp_path / "plain")
    assert [row.digests for row in rows(tmp_path / "copied" / "first")] == [row.digests for row in plain]


def test_traces_with_different_digests_for_the_same_device_kind_are_refused(use: Use, tmp_path: Path) -> None:
    use()
    recorded(training, tmp_path / "kernel")
    assert open_trace(tmp_path / "kernel").processes[0].description["device_digests"] == {"cpu": ALGORITHM}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            session, "DeviceDigests", lambda: DeviceDigests(lambda _: 1 / 0, lambda _: False, "cpu")
        )  # fmt: skip
        recorded(training, tmp_path / "copied")
    with pytest.raises(UsageError) as caught:
        determinism.compare(tmp_path / "kernel", tmp_path / "copied")
    assert caught.value.identifier == "digests-differ"


def test_a_failing_device_loses_digests_but_no_records(use: Use, tmp_path: Path) -> None:
    use(SlowDevice(failing_after=1), entries=16)
    plain = len(record_rows(training, tmp_path / "some"))
    process = open_trace(tmp_path / "some").processes[0]
    spots = {spot["id"]: spot for spot in process.description["blind_spots"]}
    assert spots["device-digest"]["count"] > 100
    assert "illegal address" in spots["device-digest"]["reason"]
    use()
    assert plain == len(record_rows(training, tmp_path / "all"))


def test_watching_captures_ends_with_the_recording() -> None:
    before = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
    for undo in watch_captures(None, DeviceDigests):  # type: ignore[arg-type]
        undo()
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end) == before


def test_modes_of_the_program_do_not_see_how_digests_are_made(use: Use, tmp_path: Path) -> None:
    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def program() -> list[str]:
        seen.clear()
        torch.ones(6, 7)[:, 1:].exp_().t()[2:].sum()
        return list(seen)

    use()
    with Functions(), Ops():
        plain = program()
        with determinism.record(tmp_path):
            found = program()
    assert found == plain
    assert plain

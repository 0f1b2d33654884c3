"""Recording on a GPU: digests match their definition, every stream and thread is read in time, graphs are blind spots, memory is bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import determinism
from determinism.comparison.result import BlindSpot, Comparison
from determinism.device_digest import ALGORITHM
from determinism.frameworks.torch import device_digests, tensor_bytes
from determinism.frameworks.torch.device_digests import Ring
from determinism.trace.opening import open_trace
from determinism.types import NO_DIGEST, Verdict
from tests.adapters.test_torch_device_ring import DTYPES, filled
from tests.torch_runs import only, record_rows, rows
from tests.torch_slow_device import expected

pytestmark = [pytest.mark.gpu, pytest.mark.triton, pytest.mark.filterwarnings("ignore")]
GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def ring() -> Ring:
    return device_digests.open_ring(GPU)


@pytest.fixture
def big() -> Iterator[torch.Tensor]:
    yield torch.randint(0, 256, (200_000_019,), dtype=torch.uint8, device=GPU)
    torch.cuda.empty_cache()


def digests_of(ring: Ring, tensors: list[torch.Tensor]) -> list[bytes]:
    return [ticket.wait() for ticket in ring.ask(tensors)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_digests_of_every_dtype_and_layout_match_the_definition(dtype: torch.dtype, ring: Ring) -> None:
    whole = filled(dtype, 16, 15, 70)
    views = [
        lambda x: x, lambda x: x[1:], lambda x: x[:, 1], lambda x: x.transpose(0, 2), lambda x: x[..., ::2],
        lambda x: x.reshape(-1)[3:50], lambda x: x[0, 0, 0], lambda x: x[:1].expand(3, 15, 70),
        lambda x: x.permute(2, 0, 1)[1:],
    ]  # fmt: skip
    on_gpu = whole.to(GPU)
    assert digests_of(ring, [view(on_gpu) for view in views]) == [expected(view(whole)) for view in views]


def test_digests_of_every_alignment_and_size_match_the_definition(ring: Ring) -> None:
    host = filled(torch.uint8, 200_000)
    on_gpu = host.to(GPU)
    places = [(start, start + length) for start in range(17) for length in (1, 7, 8, 16_383, 16_384, 16_385, 150_001)]
    wanted = [expected(host[start:end]) for start, end in places]
    assert digests_of(ring, [on_gpu[start:end] for start, end in places]) == wanted


def test_digests_of_large_tensors_match_the_definition(ring: Ring, big: torch.Tensor) -> None:
    for tensor in (big, big[1:], big[: 1 << 26].view(1 << 13, 1 << 13).t()[1:], big[::3]):
        assert digests_of(ring, [tensor]) == [expected(tensor.contiguous().cpu())]


def test_copies_of_tensors_with_gaps_take_bounded_memory(ring: Ring, big: torch.Tensor) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    digests_of(ring, [big[::2]] * 4)
    assert torch.cuda.max_memory_allocated() - before <= 3 * tensor_bytes.MOST_COPIED


def test_digests_are_of_the_values_before_later_writes_on_any_stream(ring: Ring) -> None:
    tickets, values = [], []
    for stream in [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]:
        with torch.cuda.stream(stream):
            x = torch.zeros(3_000_001, device=GPU)
            for number in range(30):
                x.add_(1)
                tickets += ring.ask([x])
                values.append(torch.full((3_000_001,), float(number + 1)))
    assert [ticket.wait() for ticket in tickets] == [expected(value) for value in values]


def test_nothing_waits_for_the_gpu_while_there_is_room(ring: Ring) -> None:
    ring.collect()
    torch.cuda.synchronize()
    x = torch.ones(1000, device=GPU)
    torch.cuda._sleep(2_000_000_000)
    arrived = torch.cuda.Event()
    tickets = [ring.ask([x])[0] for _ in range(200)]
    arrived.record()
    assert not arrived.query()
    assert tickets[0].ready() is None
    assert tickets[0].wait() == expected(x.cpu())


def unseen(comparison: Comparison) -> list[BlindSpot]:
    """The blind spots, except that of the Python recorder for a version of PyTorch whose formulas were not audited."""
    return [spot for spot in comparison.recorded.blind_spots if spot.identifier != "formulas-unaudited"]


def training() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)
    )
    model.to(GPU)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64, device=GPU)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return [loss.item(), *(parameter.detach().cpu() for parameter in model.parameters())]


def test_a_training_run_is_the_same_recorded_twice_and_unrecorded(tmp_path: Path) -> None:
    results = [training()]
    traces = [tmp_path / "first", tmp_path / "second"]
    for trace in traces:
        with determinism.record(trace):
            results.append(training())
    for result in results[1:]:
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(results[0], result, strict=True))
    comparison = determinism.compare(*traces)
    assert comparison.verdict is Verdict.SAME
    assert unseen(comparison) == []
    process = open_trace(traces[0]).processes[0]
    assert process.description["device_digests"] == {"cuda": ALGORITHM}
    # The backward runs in a thread of the framework.
    assert {row.thread for row in rows(traces[0])} == {0, 1}


def test_an_op_that_differs_is_found(tmp_path: Path) -> None:
    traces = [tmp_path / "first", tmp_path / "second"]
    for number, trace in enumerate(traces):
        with determinism.record(trace):
            torch.ones(1000, device=GPU).exp().mul(1 + number).sum().item()
    comparison = determinism.compare(*traces)
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.op == "aten::mul.Tensor"


def test_a_captured_graph_is_a_blind_spot_and_replays_as_without_recording(tmp_path: Path) -> None:
    with determinism.record(tmp_path / "trace"):
        x = torch.ones(100, device=GPU)
        x.exp()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x.sin()
        x.fill_(2)
        graph.replay()
        y.cos()
    assert torch.equal(y, torch.full((100,), 2.0, device=GPU).sin())
    found = rows(tmp_path / "trace")
    assert only(found, "sin").digests == [NO_DIGEST]
    assert NO_DIGEST not in only(found, "cos").digests + only(found, "exp").digests
    spots = {spot["what"] for spot in open_trace(tmp_path / "trace").processes[0].description["blind_spots"]}
    assert spots >= {"ops that are captured into a CUDA graph", "replay of a CUDA graph"}


def test_threads_with_streams_of_their_own_are_recorded(tmp_path: Path) -> None:
    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((100_000,), float(number), device=GPU)
            for _ in range(50):
                x = x.mul(1.01)
            x.sum().item()

    traces = [tmp_path / "first", tmp_path / "second"]
    for trace in traces:
        with determinism.record(trace):
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    comparison = determinism.compare(*traces)
    assert comparison.verdict is Verdict.SAME
    assert unseen(comparison) == []


def test_recording_takes_bounded_memory_on_the_gpu(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(1 << 20, device=GPU)
        for _ in range(20_000):
            x = x.mul(1.0)

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = record_rows(program, tmp_path)
    assert len(found) > 20_000
    assert torch.cuda.max_memory_allocated() - before < 3 * (4 << 20) + (2 << 20)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU or none")
def test_each_gpu_has_a_ring_of_its_own(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(1000, device="cuda:0").exp()
        x.to("cuda:1").sin().cpu()

    found = record_rows(program, tmp_path)
    assert NO_DIGEST not in only(found, "exp").digests + only(found, "sin").digests


def test_an_asynchronous_copy_to_the_host_is_not_digested_early(tmp_path: Path) -> None:
    def program() -> Any:
        x = torch.ones(10_000_000, device=GPU).exp()
        torch.cuda._sleep(100_000_000)
        y = x.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        return y.sin()

    traces = [tmp_path / "first", tmp_path / "second"]
    found = [record_rows(program, trace) for trace in traces]
    assert all(only(rows, "_to_copy").digests == [NO_DIGEST] for rows in found)
    assert determinism.compare(*traces).verdict is Verdict.SAME

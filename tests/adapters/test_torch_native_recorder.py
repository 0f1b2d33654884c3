"""The native recorder makes the same records as the dispatch mode, and reports what it cannot record."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import determinism
from determinism.digest import digest_bytes
from determinism.frameworks.torch import native_library as library
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.report.document import document
from determinism.types import Kind, Verdict
from tests.torch_recorders import blind_spots, differences, record_lines, record_with
from tests.torch_runs import compare_program
from tests.torch_training import batches, mlp, train

pytestmark = pytest.mark.native_recorder


@pytest.fixture(scope="module")
def built() -> Any:
    """The library."""
    return library.load()


def perceptron() -> Any:
    net = mlp()
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y))


def _convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


def convolutions() -> Any:
    net = _convolutions()
    images = [(torch.randn(2, 3, 8, 8), torch.randint(5, (2,))) for _ in range(2)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return train(net, images, lambda x, y: F.cross_entropy(net(x), y), optimizer)


def autocast() -> Any:
    net = _convolutions()
    images = [(torch.randn(2, 3, 8, 8), torch.randint(5, (2,)))]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = net(x) @ torch.randn(5, 5)
        return F.cross_entropy(made.float(), y)

    return train(net, images, loss)


def recurrent() -> Any:
    torch.manual_seed(0)
    net = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.2)
    return train(net, [(torch.randn(2, 3, 4),) for _ in range(2)], lambda x: net(x)[0].sum())


def optimizers() -> Any:
    made = []
    for kind, options in (
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.RMSprop, {"foreach": False}),
    ):
        net = mlp()
        optimizer = kind(net.parameters(), lr=0.01, **options)  # type: ignore[operator]
        made += train(net, batches(2), lambda x, y, net=net: F.cross_entropy(net(x), y), optimizer)
    return made


def draws() -> Any:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(3), torch.rand(3, generator=generator), torch.randperm(5), torch.empty(3).normal_(generator=generator),
        torch.multinomial(torch.ones(4), 2), F.dropout(torch.ones(9)),
    ]  # fmt: skip


def draws_of_several_generators() -> Any:
    own, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    drawn = [torch.randn(3, generator=own), torch.randn(3, generator=other), torch.randn(17, generator=own)]
    state = own.get_state()
    drawn += [torch.rand(2), torch.rand(2, generator=own)]
    own.set_state(state)
    torch.manual_seed(4)
    # Normal numbers are drawn in pairs; the second is kept for the next draw.
    drawn += [torch.rand(2), torch.rand(2, generator=own), torch.normal(0.0, 1.0, (1,)), torch.normal(0.0, 1.0, (1,))]
    return torch.cat([*drawn, torch.bernoulli(torch.zeros(0)), torch.randint(9, (2,)).float()])


def memory_of_others() -> Any:
    array = np.ones(3, dtype="f4")
    taken = torch.from_numpy(array)
    before = taken + 1
    array[:] = 5
    after = taken * 2
    after.numpy()[0] = 9
    shared = torch.zeros(3).share_memory_().add_(1)
    return [before, after, after + 1, torch.tensor([1.0, 2.0]), after.sum().item(), bool((after > 0).all()), shared * 2]


def sparse_quantized_nested() -> Any:
    weight = torch.randn(4, 2, requires_grad=True)
    torch.sparse.mm(torch.eye(4).to_sparse(), weight).sum().backward()
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])
    return [weight.grad, quantized.dequantize(), nested.to_padded_tensor(0.0)]


def partial_writes() -> Any:
    x = torch.zeros(6)
    x[2:4] = 1
    x[torch.tensor([0, 1])] = 3
    x.index_put_((torch.tensor([1, 1]),), torch.ones(2), accumulate=True)
    x[x > 0] += 1
    made = torch.empty(6)
    torch.add(x, 1, out=made)
    return [x, made, x.masked_fill(x > 1, 0), torch.sort(x), torch.linalg.svd(torch.randn(3, 3))]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def own_function_and_checkpoint() -> Any:
    net, x = mlp(), torch.randn(4, 6, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(net, Square.apply(x), use_reentrant=reentrant).sum().backward()
    return x.grad


def transforms() -> Any:
    derivative = torch.func.jvp(lambda a: (a.sin() * a).sum(), (torch.randn(3),), (torch.ones(3),))
    return [derivative, torch.func.vmap(lambda a: (a * a).sum())(torch.randn(4, 3))]


def torchscript() -> Any:
    # PyTorch caches the compiled form of a function, so each recorder gets its own function.
    def scripted(x: Tensor) -> Tensor:
        y = x.sin()
        for _ in range(2):
            y = y * x
        return y

    x, function = torch.randn(3, requires_grad=True), torch.jit.script(scripted)
    for _ in range(3):
        function(x).sum().backward()
    return x.grad


def views() -> Any:
    x = torch.randn(4, 4, requires_grad=True)
    y = x.clone()
    y[0].mul_(2)
    y[:, 1].fill_(3)
    y.t().add_(1)
    (y.t() * y).sum().backward()
    return x.grad


def failing_ops() -> Any:
    with pytest.raises(RuntimeError):
        torch.randn(3) @ torch.randn(4)
    x = torch.ones(3)
    with pytest.raises(RuntimeError):
        torch.add(x, torch.ones(2), out=x)
    return x + 1


def memory_handed_out_in_every_way() -> Any:
    x, made = torch.randn(4, 3), []
    weight = nn.Parameter(torch.randn(3))
    for tensor in (
        x,
        x[1:],
        x.t(),
        x[:0],
        weight.data,
        weight.detach(),
        torch.ones(()),
        torch.ones(3, dtype=torch.bfloat16),
    ):
        made.append(tensor.data_ptr())
        if tensor.dtype is not torch.bfloat16:
            np.asarray(tensor)[...] += 1
        np.from_dlpack(
            tensor
        ) if tensor.is_contiguous() and tensor.numel() > 1 and tensor.dtype is torch.float32 else None
    others = (weight, x.to_sparse(), torch.ones(2, device="meta"), torch.complex(x, x).conj().imag)
    for tensor in others:
        with pytest.raises((RuntimeError, TypeError)):
            tensor.numpy()
    return [x + 1, weight * 2, (x * weight).sum().item(), len(made)]


class Odd(nn.Module):
    """Calls itself recursively, and fails at a certain depth."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rest = nn.Linear(3, 3), nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        x = self.inner(x) + depth
        if depth == 2:
            raise ValueError("deep enough")
        try:
            self(x, depth + 1)
        except ValueError:
            x = x * 2
        for layer in self.rest:
            x = layer(x)
        return x


def modules_called_in_odd_ways() -> Any:
    torch.manual_seed(0)
    net, x = Odd(), torch.randn(2, 3)
    made = [net(x), net.inner(x), net.rest[1](net.rest[0](x)), nn.Linear(3, 1)(x)]
    # Each module gets the address of the previous one.
    made += [nn.Sequential(nn.Linear(3, 3), nn.Tanh())(x) for _ in range(6)]
    net.rest[0] = nn.Bilinear(3, 3, 3)
    with pytest.raises(TypeError):
        net(x)
    net.rest[0] = nn.Identity()
    net.inner.register_forward_hook(lambda module, inputs, output: output + net.rest[1](inputs[0]))

    def parts() -> Any:
        yield net(x)
        yield net.inner(x)

    made += list(parts())
    thread = threading.Thread(target=lambda: made.append(net(x)))
    thread.start()
    thread.join()
    return [*made, net.inner.weight.grad]


SAME = (
    perceptron, convolutions, autocast, recurrent, optimizers, draws, draws_of_several_generators, memory_of_others, sparse_quantized_nested, partial_writes,
    own_function_and_checkpoint, transforms, torchscript, views, failing_ops, memory_handed_out_in_every_way, modules_called_in_odd_ways,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["op", "module", "step"])
@pytest.mark.parametrize("program", SAME, ids=lambda program: program.__name__)
def test_both_recorders_make_the_same_records(program: Callable[[], Any], level: str, tmp_path: Path) -> None:
    lines, results = {}, {}
    for recorder in ("python", "native"):
        torch.manual_seed(1)
        results[recorder] = record_with(recorder, program, tmp_path / recorder, level=level)
        lines[recorder] = [_as_under_a_mode(line) for line in record_lines(tmp_path / recorder)]

    assert len(lines["native"]) > (3 if level == "op" else 0)
    assert differences(lines["python"], lines["native"]) == []
    assert results["python"] == results["native"]
    assert blind_spots(tmp_path / "python") == blind_spots(tmp_path / "native")


def _as_under_a_mode(line: str) -> str:
    """Hide that the autograd engine accumulates gradients in place if no mode is active."""
    return re.sub(r"^(\d+ OP add)_(\.Tensor\(\) .* BACKWARD )", r"\1\2", line)


def test_an_argument_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    values = iter([1.0, 2.0])

    def program() -> Any:
        return torch.ones(3) * next(values)

    assert compare_program(program, tmp_path).verdict is Verdict.DIFFERENT


def test_a_failing_handler_is_a_blind_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determinism.frameworks.torch.native_recorder.NativeRecorder.native_value", lambda *_: 1 / 0)
    record_with("native", lambda: torch.ones(3).to(torch.complex64).sum().item(), tmp_path / "trace")

    (spot,) = blind_spots(tmp_path / "trace")
    assert (spot["id"], spot["what"]) == ("handler-failed", "aten::_local_scalar_dense")
    assert "ZeroDivisionError" in spot["reason"]


def test_a_failing_handler_for_handed_out_memory_is_a_blind_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("determinism.sites.SiteTable.stack", lambda *_: 1 / 0)
    monkeypatch.setattr("determinism.frameworks.torch.native_recorder.NativeSites.stack", lambda *_: 1 / 0)
    handed_over = []
    record_with("native", lambda: handed_over.append(torch.from_numpy(np.ones(2)).numpy()), tmp_path / "trace")

    spots = {(spot["id"], spot["what"]) for spot in blind_spots(tmp_path / "trace")}
    assert ("handler-failed", "determinism::numpy") in spots
    assert [array.tolist() for array in handed_over] == [[1, 1]]


def test_memory_that_numpy_wrote_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    values = iter([1.0, 2.0])

    def program() -> Any:
        x = torch.zeros(3) + 1
        x.numpy()[:] = next(values)
        return x * 2

    comparison = compare_program(program, tmp_path)
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None and comparison.first_divergence.kind is Kind.MUTATION


def test_no_tensor_is_kept_alive(tmp_path: Path) -> None:
    def count() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    def program() -> None:
        x = torch.randn(100, requires_grad=True)
        (x * x).sum().backward()

    record_with("native", program, tmp_path / "first")
    before = count()
    record_with("native", program, tmp_path / "second")
    # Fewer if tensors of earlier tests were freed in the meantime.
    assert count() <= before


def test_an_op_waits_for_a_thread_that_holds_the_lock_of_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    has_begun, counts = threading.Event(), []
    with determinism.record(tmp_path / "trace") as session:
        torch.ones(1)

        def hold() -> None:
            with session.writer.lock:
                has_begun.set()
                for _ in range(20):
                    counts.append(session.writer.num_records)
                    time.sleep(0.01)

        holder = threading.Thread(target=hold)
        before = session.writer.num_records
        holder.start()
        assert has_begun.wait(60)
        torch.ones(2)
        holder.join()
        assert session.writer.num_records == before + 1
    assert set(counts) == {before}


def test_threads_that_wait_for_the_writer_release_its_lock_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    num_threads, num_ops = 6, 40
    with determinism.record(tmp_path / "trace") as session:
        start = threading.Event()

        def work() -> None:
            start.wait()
            for _ in range(num_ops):
                torch.ones(1)

        workers = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
        for worker in workers:
            worker.start()
        start.set()
        writer = None
        while any(worker.is_alive() for worker in workers):
            stream = session.threads.stream
            if stream is None:
                continue
            writer = stream.writer
            # Held for longer than Python's switch interval, so that some threads wait while others arrive.
            with writer.lock:
                time.sleep(0.012)
        for worker in workers:
            worker.join(60)
        if writer is None:  # the workers finished before this thread ran again
            assert session.threads.stream is not None
            writer = session.threads.stream.writer
        assert writer.lock.num_held[0] == 0
        assert writer.num_records >= num_threads * num_ops


def test_tensors_that_own_their_memory_are_recognized(built: Any) -> None:
    class Own(Tensor):
        pass

    plain = [torch.ones(3), nn.Parameter(torch.ones(3)), torch.ones(4)[1:], torch.ones(0)]
    assert built.are_own(plain)
    others = (
        torch.ones(3).share_memory_(), torch.from_numpy(np.ones(3)), torch.ones(3).as_subclass(Own), torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"), torch.ones(3, dtype=torch.complex64).conj(),
    )  # fmt: skip
    for other in others:
        assert not built.are_own([*plain, other])


def test_a_recorder_that_has_not_begun_or_has_ended_says_so(built: Any) -> None:
    recorder = built.Recorder(object())
    with pytest.raises(RuntimeError, match="it has not begun, or has ended"):
        recorder.look_at_each([torch.ones(1)], 0, 0)
    recorder.close()
    with pytest.raises(RuntimeError, match="it has not begun, or has ended"):
        recorder.look_at_each([torch.ones(1)], 0, 0)


def test_digests_equal_those_of_python(built: Any) -> None:
    for length in (0, 1, 3, 16, 129, 241, 1024, 4097, 1 << 17):
        data = bytes(range(256)) * (length // 256 + 1)
        assert built.digest(data[:length]) == digest_bytes(data[:length]), length
    block = torch.randn(6, 5, 4)
    for tensor in (block, block.transpose(0, 2), block[:, 1], block[::2], block[:0], block[1:]):
        assert built.digest_tensor(tensor) == digest_tensor(tensor), tensor.stride()


def test_a_report_names_the_native_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    comparison = compare_program(lambda: torch.ones(3) + 1, tmp_path)

    assert document(comparison)["recorded"]["recorders"] == [{"name": "native", "reason": ""}]

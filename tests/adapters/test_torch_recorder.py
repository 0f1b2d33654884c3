"""What one record says: who wrote an input, which forward line a backward op belongs to, where user code was."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import determinism
from determinism.frameworks.torch.recorder import Recorder
from determinism.trace.reader import open_trace
from determinism.types import Access, Phase, Role, Verdict
from tests.torch_runs import Row, record_rows, recorded, rows

HERE = __file__


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of a function's source that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def named(records: list[Row], op: str) -> list[Row]:
    return [record for record in records if record.op == op or record.op.partition(".")[0] == op]


def only(records: list[Row], op: str) -> Row:
    (found,) = named(records, op)
    return found


# Who wrote an input


def test_writes_through_data_out_and_foreach_are_producers(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(3)
        x.data.mul_(2)
        x.exp()
        torch.add(x, 1, out=x)
        x.sin()
        torch._foreach_neg_([x])
        x.cos()
        x.detach()[1].fill_(4)
        x.tan()

    found = record_rows(function, tmp_path)
    for reader, writer in (("exp", "mul_"), ("sin", "add"), ("cos", "_foreach_neg_"), ("tan", "fill_")):
        assert only(found, reader).producers == [only(found, writer).number], reader


def test_optimizer_writes_are_producers(tmp_path: Path) -> None:
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):

        def function(options: Any = options) -> Any:
            weight = nn.Parameter(torch.ones(3))
            optimizer = torch.optim.AdamW([weight], **options)
            weight.pow(2).sum().backward()
            optimizer.step()
            weight.exp()

        found = record_rows(function, tmp_path / str(options))
        (producer,) = only(found, "exp").producers
        assert producer is not None
        assert found[producer].phase is Phase.OPTIMIZER, options


def test_storage_that_got_the_address_of_another_is_its_own(tmp_path: Path) -> None:
    def function() -> Any:
        for _ in range(50):
            x = torch.ones(64)
            x.exp()
            del x
        outside = [torch.frombuffer(bytearray(256), dtype=torch.float32) for _ in range(20)]
        for y in outside:
            y.sin()

    found = record_rows(function, tmp_path)
    ones, exps = named(found, "ones"), named(found, "exp")
    assert [record.producers for record in exps] == [[record.number] for record in ones]
    assert all(record.producers == [None] for record in named(found, "sin"))


def test_sweep_of_dead_storages_keeps_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determinism.frameworks.torch.storages._NEW_BETWEEN_SWEEPS", 16)

    def function() -> Any:
        kept = torch.ones(3)
        for _ in range(100):
            torch.zeros(3).add_(1)
        kept.exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").producers == [only(found, "ones").number]


def test_views_share_the_producer(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(4, 4)
        x.t()[1:, ::2].unsqueeze(0).squeeze().exp()
        x.detach().expand(2, 4, 4).sin()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").producers == only(found, "sin").producers == [only(found, "ones").number]


def test_access_of_written_inputs(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(4)
        x.fill_(1)
        x[:2].fill_(2)
        x.add_(1)

    found = record_rows(function, tmp_path)
    whole, part = named(found, "fill_")
    assert Access.READ not in whole.accesses
    assert part.accesses == [Access.CARRY]
    assert Access.READ in only(found, "add_").accesses


def test_running_statistics_are_written(tmp_path: Path) -> None:
    def function() -> Any:
        net = nn.BatchNorm1d(3)
        net(torch.ones(4, 3))
        net.running_mean.exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").producers == [only(found, "native_batch_norm").number]


# Backward


def forward_line(record: Row) -> int | None:
    return record.forward_stack[0].line if record.forward_stack else None


def test_backward_of_a_linear_layer(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def function() -> Any:
        hidden = net[0](torch.ones(2, 3))
        hidden = net[1](hidden)
        out = net[2](hidden)
        loss = out.pow(2).sum()
        loss.backward()

    found = record_rows(function, tmp_path)
    back = [record for record in found if record.phase is Phase.BACKWARD]
    assert {forward_line(record) for record in named(back, "threshold_backward")} == {line_of(function, "net[1]")}
    multiplied = [forward_line(record) for record in named(back, "mm")]
    assert multiplied == [line_of(function, "net[2]")] * 2 + [line_of(function, "net[0]")]
    first, last = named(found, "addmm")
    assert [record.forward for record in named(back, "mm")] == [last.number, last.number, first.number]
    assert {forward_line(record) for record in named(back, "pow")} == {line_of(function, "pow(2)")}
    assert all(record.stack[0].line == line_of(function, "loss.backward()") for record in back)


def test_backward_carries_the_module_of_the_forward(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def function() -> Any:
        net(torch.ones(2, 3)).sum().backward()

    found = record_rows(function, tmp_path)
    assert [record.module for record in named(found, "addmm")] == ["0", "2"]
    assert {record.module for record in named(found, "threshold_backward")} == {"1"}
    assert [record.module for record in named(found, "mm")] == ["2", "2", "0"]


class Cube(torch.autograd.Function):
    """A function with user code in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.square() * 3


def test_backward_of_a_custom_function(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(3, requires_grad=True)
        y = Cube.apply(x)
        y.exp().sum().backward()

    found = record_rows(function, tmp_path)
    squared = next(record for record in found if record.op.startswith(("square", "pow")) and record.phase is Phase.BACKWARD)
    assert squared.stack[0].function == "Cube.backward"
    assert squared.forward_stack[0].function == "Cube.forward"
    assert squared.forward_stack[1].line == line_of(function, "Cube.apply")


def test_backward_of_views_and_writes_in_place(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(4, 4, requires_grad=True)
        y = x * 2
        part = y[1:3]
        turned = part.t()
        turned.mul_(3)
        z = turned.reshape(-1)
        z.sin_()
        z.sum().backward()

    found = record_rows(function, tmp_path)
    back = [record for record in found if record.phase is Phase.BACKWARD]
    lines = {record.op.partition(".")[0]: forward_line(record) for record in back}
    assert lines["cos"] == line_of(function, "z.sin_()")
    # The gradient of the write through two views.
    assert line_of(function, "turned.mul_(3)") in [forward_line(record) for record in named(back, "mul")]
    assert line_of(function, "x * 2") in [forward_line(record) for record in named(back, "mul")]
    assert None not in [forward_line(record) for record in back if record.op.startswith(("mul", "cos", "slice_backward"))]


def test_backward_of_a_view_is_linked_to_the_line_of_the_view(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(4, 4, requires_grad=True)
        y = x.exp()
        z = y[1:3]
        w = z.select(0, 1)
        w.sum().backward()

    found = record_rows(function, tmp_path)
    assert forward_line(only(found, "slice_backward")) == line_of(function, "y[1:3]")
    assert forward_line(only(found, "select_backward")) == line_of(function, "z.select")


def test_backward_of_what_was_made_without_gradient_in_between(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        with torch.no_grad():
            torch.ones(3).cos()
            x.sin()
        z = y.tan()
        torch.ones(3).sqrt()
        z.sum().backward()

    found = record_rows(function, tmp_path)
    back = [record for record in found if record.phase is Phase.BACKWARD]
    assert line_of(function, "y.tan()") in {forward_line(record) for record in back}
    assert line_of(function, "x.exp()") in {forward_line(record) for record in back}
    assert {forward_line(record) for record in back} <= {line_of(function, t) for t in ("x.exp()", "y.tan()", "z.sum()")} | {None}


def test_backward_over_several_steps(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))

    def function() -> Any:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        kept = weight.exp()
        for _ in range(3):
            (kept.sum() + weight.sinh().sum()).backward(retain_graph=True)
            optimizer.step()

    with pytest.raises(RuntimeError):
        # The graph of the first step keeps a version of the parameter that the optimizer changed.
        nn.Parameter(torch.ones(3)).exp().sum().backward(torch.ones(2))
    found = record_rows(function, tmp_path)
    cosh = named(found, "cosh")
    assert [record.step for record in cosh] == [0, 1, 2]
    assert {forward_line(record) for record in cosh} == {line_of(function, "weight.sinh()")}


def test_hooks_in_a_backward_are_the_site(tmp_path: Path) -> None:
    def hook(gradient: Tensor) -> Tensor:
        return gradient.atan()

    def function() -> Any:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.register_hook(hook)
        y.sum().backward()

    record = only(record_rows(function, tmp_path), "atan")
    assert record.phase is Phase.BACKWARD
    assert record.stack[0].function.endswith("hook")


# Other facts


def test_site_is_the_innermost_user_frame(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.gelu(x)

    net = Net()

    def function() -> Any:
        net(torch.ones(3))
        list(map(torch.sin, [torch.ones(2)]))

    found = record_rows(function, tmp_path)
    gelu = only(found, "gelu")
    assert gelu.stack[0].file == HERE and gelu.stack[0].function.endswith("Net.forward")
    assert gelu.stack[0].code == "return nn.functional.gelu(x)"
    assert gelu.stack[1].line == line_of(function, "net(torch.ones(3))")
    assert only(found, "sin").stack[0].line == line_of(function, "map(")


def test_inference_tensors_are_followed(tmp_path: Path) -> None:
    def function() -> Any:
        with torch.inference_mode():
            x = torch.ones(3)
            x.add_(1)
            x.exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").producers == [only(found, "add_.Tensor").number]


@pytest.mark.parametrize("broken", ["_after", "place", "_append", "_generator_before"])
def test_failing_handler_becomes_a_blind_spot(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(Recorder, broken)
    calls = []

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) % 3 == 0:
            raise ValueError("out of luck")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Recorder, broken, fail)
    plain = []

    def function() -> Any:
        torch.manual_seed(0)
        net = nn.Linear(3, 3)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.randn(2, 3)).sum()
            loss.backward()
            optimizer.step()
            plain.append(loss.item())

    for _ in range(2):
        function()
    assert not calls
    with determinism.record(tmp_path / "trace"):
        function()
    assert len(calls) >= 3
    monkeypatch.undo()
    assert plain[:3] == plain[3:6] == plain[6:]
    spots = open_trace(tmp_path / "trace").processes[0].description["blind_spots"]
    assert {(spot["id"], spot["reason"]) for spot in spots} == {("handler-failed", "ValueError: out of luck")}
    assert sum(spot["count"] for spot in spots) >= len(calls) // 3
    rows(tmp_path / "trace")


def test_exceptions_of_the_program_are_its_own(tmp_path: Path) -> None:
    def function() -> Any:
        with pytest.raises(RuntimeError, match="size|shape"):
            torch.ones(2) @ torch.ones(3)
        with pytest.raises(IndexError):
            torch.ones(2)[4]
        torch.ones(3).exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").role is Role.OP
    assert not open_trace(tmp_path).processes[0].description["blind_spots"]


def test_storage_resized_to_nothing(tmp_path: Path) -> None:
    """Sharded training frees the memory of parameters that it keeps."""
    traces = [tmp_path / "first", tmp_path / "second"]
    for trace in traces:
        with determinism.record(trace):
            net = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1))
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.fill_(0.01)
            net(torch.ones(1, 100)).sum().backward()
            net[0].weight.untyped_storage().resize_(0)
            torch.optim.SGD([net[1].weight], lr=0.1).step()
            net[0].weight.untyped_storage().resize_(40_000)
            net[0].weight.data.fill_(2)
            net(torch.ones(1, 100)).sum().backward()
    assert determinism.compare(*traces).verdict is Verdict.SAME


def test_tensors_of_zeros_without_memory(tmp_path: Path) -> None:
    def function() -> Any:
        zeros = torch._efficientzerotensor((4,))
        return zeros + torch.ones(4), zeros * 2, zeros.clone()

    recorded(function, tmp_path)
    assert not open_trace(tmp_path).processes[0].description["blind_spots"]


def test_control_flow_operators_run(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.ones(3)
        return torch.cond(x.sum() > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))

    assert record_rows(function, tmp_path)


def _count_tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_nothing_stays_behind(tmp_path: Path) -> None:
    places = [(torch.Tensor, "numpy"), (torch.Tensor, "tolist"), (torch.Tensor, "data_ptr"), (torch, "save"),
              (torch.Tensor, "__reduce_ex__"), (torch._tensor_str, "_str"), (torch.autograd, "_engine_run_backward"),
              (torch.amp.GradScaler, "step")]  # fmt: skip
    before = [inspect.getattr_static(owner, name) for owner, name in places]
    tensors = _count_tensors()
    record_rows(lambda: nn.Linear(3, 3)(torch.ones(3)).sum().backward(), tmp_path)
    assert [inspect.getattr_static(owner, name) for owner, name in places] == before
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    gc.collect()
    assert _count_tensors() <= tensors + 1


def test_recording_does_not_lengthen_the_life_of_tensors(tmp_path: Path) -> None:
    ended = []

    def function() -> Any:
        import weakref

        x = torch.ones(1000)
        weakref.finalize(x, ended.append, 1)
        x.exp().sum()
        del x
        assert ended == [1]

    record_rows(function, tmp_path)

"""The forward line and module of a backward op, and the location of its user code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.types import Phase
from tests.torch_runs import Row, check_deterministic, line_of, named, only, record_rows


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
    squared = next(
        record for record in found if record.op.startswith(("square", "pow")) and record.phase is Phase.BACKWARD
    )
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
    assert None not in [
        forward_line(record) for record in back if record.op.startswith(("mul", "cos", "slice_backward"))
    ]


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


def test_ops_without_gradient_in_between_do_not_change_the_forward_lines(tmp_path: Path) -> None:
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
    assert {forward_line(record) for record in back} <= {
        line_of(function, t) for t in ("x.exp()", "y.tan()", "z.sum()")
    } | {None}


def test_backward_over_several_steps_has_the_right_steps_and_lines(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))

    def function() -> Any:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        kept = weight.exp()
        for _ in range(3):
            (kept.sum() + weight.sinh().sum()).backward(retain_graph=True)
            optimizer.step()

    with pytest.raises(RuntimeError):
        # A backward that failed before the recording does not matter.
        nn.Parameter(torch.ones(3)).exp().sum().backward(torch.ones(2))
    found = record_rows(function, tmp_path)
    cosh = named(found, "cosh")
    assert [record.step for record in cosh] == [0, 1, 2]
    assert {forward_line(record) for record in cosh} == {line_of(function, "weight.sinh()")}


def test_the_site_of_an_op_in_a_backward_hook_is_the_hook(tmp_path: Path) -> None:
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


class Nested(torch.autograd.Function):
    """Runs another backward within its own; with deep nesting, one runs in a thread of the engine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = Nested.apply(x, ctx.depth - 1) if ctx.depth else x.exp().mul(2)
            y.sum().backward()
        return grad * x.grad, None


def test_an_op_in_a_thread_of_the_engine_has_the_stack_of_the_waiting_thread(tmp_path: Path) -> None:
    """Like every backward op on a GPU, it runs in a thread without Python frames."""

    def function() -> Any:
        x = torch.ones(3, requires_grad=True)
        Nested.apply(x, 60).sum().backward()
        return x.grad

    check_deterministic(function, tmp_path)
    found = record_rows(function, tmp_path / "again")
    beside = [record for record in found if record.thread == 1]
    assert {record.op for record in beside} == {"mul.Tensor"}
    for record in beside:
        assert record.stack[0].line == line_of(Nested.backward, "y.sum().backward()")
        assert forward_line(record) == line_of(Nested.backward, "x.exp().mul(2)")

"""Graphs compiled by Inductor: each call of a kernel is a record; if kernels cannot be seen, each call of a graph is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

from determinism.frameworks.torch import compilers
from determinism.trace.opening import open_trace
from determinism.types import Kind, Phase, Verdict
from tests.torch_runs import Row, compare_program, record_rows, recorded

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

compiled = cache(torch.compile)


def kernels(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.op.startswith("inductor::cpp_fused")]


def kernels_of_modules(beginning: str) -> list[Any]:
    """The kernels, or their wrappers, in the modules that Inductor wrote, each once."""
    code = torch._inductor.codecache.PyCodeCache
    modules = {id(module): vars(module) for module in (*code.modules, *code.modules_no_attr.values())}
    return [value for module in modules.values() for name, value in module.items() if name.startswith(beginning)]


def racy(trace: Path) -> list[str]:
    """What the process did whose outcome depends on timing."""
    (process,) = open_trace(trace).processes
    return process.description.get("racy") or []


def hidden_of(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = (values.sin() * 2) @ weight
    return hidden.softmax(-1)


def training() -> Any:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 5))
    compiled(hidden_of)(torch.randn(4, 6), weight).square().sum().backward()
    return weight.grad


def test_each_call_of_a_kernel_is_a_record_with_what_it_read_and_wrote(tmp_path: Path) -> None:
    rows = record_rows(training, tmp_path / "trace")
    first, second = kernels([row for row in rows if row.phase is not Phase.BACKWARD])
    product = next(row for row in rows if row.op == "mm.out")
    assert "sin" in first.op and "softmax" in second.op
    assert product.producers[0] == first.number, "the ops of PyTorch between kernels are records of their own"
    assert product.number in second.producers
    assert "code=" in first.arguments
    assert kernels([row for row in rows if row.phase is Phase.BACKWARD])
    assert not [row for row in rows if row.op == "inductor::graph"]
    (process,) = open_trace(tmp_path / "trace").processes
    assert process.description["blind_spots"] == []


def test_two_runs_of_a_compiled_training_are_the_same(tmp_path: Path) -> None:
    assert compare_program(training, tmp_path).verdict is Verdict.SAME
    assert racy(tmp_path / "first") == []


def test_nothing_stays_wrapped_when_recording_ends(tmp_path: Path) -> None:
    recorded(training, tmp_path / "trace")
    found = kernels_of_modules("cpp_fused")
    assert found and all(isinstance(kernel, BuiltinFunctionType) for kernel in found)


def summed(target: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return target.sin().index_add(0, places, values * 1.5).cos()


def test_a_kernel_whose_threads_add_in_any_order_is_the_first_difference(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    places, values = torch.randint(0, 17, (200_000,), generator=generator), torch.randn(200_000, generator=generator)
    for number in range(200):  # a busy machine may let two threads take turns for a while
        comparison = compare_program(lambda: compiled(summed)(torch.zeros(17), places, values), tmp_path / str(number))
        if comparison.verdict is Verdict.DIFFERENT:
            break
    first = comparison.first_divergence
    assert first is not None
    assert first.kind is Kind.OP
    assert first.op.startswith("inductor::cpp_fused")
    assert racy(tmp_path / str(number) / "first") == ["compiled kernels that add in any order"]


def test_a_graph_whose_kernels_cannot_be_seen_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As with kernels of Triton, or with Inductor's wrapper in C++.
    monkeypatch.setattr(compilers, "_namespace_with", lambda called, names: None)
    rows = record_rows(training, tmp_path / "trace")
    assert not kernels(rows)
    assert [row.phase is Phase.BACKWARD for row in rows if row.op == "inductor::graph"] == [False, True]
    (process,) = open_trace(tmp_path / "trace").processes
    assert [spot["id"] for spot in process.description["blind_spots"]] == ["fused-kernels"]


def sine_of(values: torch.Tensor) -> torch.Tensor:
    return values.sin() * 2


def test_memory_that_nothing_wrote_is_named_as_the_cause_in_the_kernel_that_reads_it(tmp_path: Path) -> None:
    values = torch.ones(64)

    def program() -> Any:
        # Inductor writes all memory that its kernels read, so the fault is planted: the kernel gets memory that is only allocated.
        made = compiled(sine_of)(values)
        (kernel,) = (one for one in kernels_of_modules("cpp_fused_mul_sin_0") if isinstance(one, FunctionType))
        held = torch._C._dynamo.guards._empty_strided_cpu((64,), (1,), torch.float32)
        kernel(held, made)
        return made.clamp(-1, 1)

    for number in range(200):  # the memory of both runs may have the same content
        first = compare_program(program, tmp_path / str(number)).first_divergence
        if first is not None:
            break
    assert first is not None
    assert (first.kind, first.op) == (Kind.UNINITIALIZED, "inductor::cpp_fused_mul_sin_0")


def what_is_compiled(optimizer_of: Callable[[list[Tensor]], torch.optim.Optimizer]) -> dict[str, Any]:
    """How often a step with backward and optimizer was compiled, in how many frames and graphs."""
    torch.compiler.reset()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = optimizer_of(list(net.parameters()))

    @torch.compile(backend="eager")
    def step(inputs: Tensor) -> None:
        optimizer.zero_grad()
        loss: Tensor = net(inputs).square().sum()
        loss.backward()
        optimizer.step()

    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        step(torch.randn(4, 5))
    counters = torch._dynamo.utils.counters
    return {**counters["stats"], "frames": counters["frames"]["total"], "breaks": len(counters["graph_break"])}


@pytest.mark.parametrize(
    "optimizer_of", [torch.optim.AdamW, lambda of: torch.optim.SGD(of, lr=0.1)], ids=["AdamW", "SGD"]
)
def test_a_step_with_backward_and_optimizer_is_compiled_as_without_a_recorder(
    tmp_path: Path, optimizer_of: Any
) -> None:
    plain = what_is_compiled(optimizer_of)
    found: list[dict[str, Any]] = []
    rows = record_rows(lambda: found.append(what_is_compiled(optimizer_of)), tmp_path / "trace")
    (with_recorder,) = found
    assert with_recorder.pop("frames") <= plain["frames"], "Dynamo looks at no function of the recorder"
    assert with_recorder == {name: count for name, count in plain.items() if name != "frames"}
    assert plain["unique_graphs"] >= 1
    assert {row.step for row in rows} >= {0, 1, 2}, "steps of the optimizer are counted all the same"
    assert what_is_compiled(optimizer_of) == plain, "and after the recording"


def test_a_run_that_compiles_and_one_that_finds_the_code_in_a_cache_are_the_same(tmp_path: Path) -> None:
    def program() -> Any:
        torch.compiler.reset()
        values = torch.ones(5, 3, requires_grad=True)
        # Each backward graph is copied before it is compiled, with the constant in it.
        torch.compile(lambda given: given[torch.tensor([0, 2, 2, 1])].sin())(values).sum().backward()
        torch.compile(lambda given: given.clone().index_put((torch.tensor([0, 1]),), given[:2]))(
            values
        ).sum().backward()
        return values.grad

    with fresh_cache():
        comparison = compare_program(program, tmp_path)
    assert comparison.verdict is Verdict.SAME
    assert comparison.dead_differences == 0


def fused(op: str, line: int) -> compilers.FusedOp:
    return compilers.FusedOp(f"aten::{op}", "/home/ada/train.py", line, "forward", "code")


@pytest.mark.parametrize(
    ("code", "ops", "expected"),
    [
        ("atomic_add(", [("sin", 7), ("index_add", 8)], ("aten::index_add", 8)),
        ("atomic_add(", [("scatter_add", 8), ("index_add", 8)], ("aten::scatter_add and index_add", 8)),
        ("atomic_add(", [("index_put", 7), ("index_add", 8)], None),
        ("", [("sin", 7), ("mul", 7)], ("aten::sin and mul", 7)),
        ("", [("sin", 7), ("index_add", 8)], None),
        ("", [], None),
    ],
)
def test_the_varying_op_of_a_kernel_is_named_only_if_one_line_can_vary(
    code: str, ops: list[tuple[str, int]], expected: tuple[str, int] | None
) -> None:
    kernel = compilers.CompiledKernel(compilers.OPAQUE, lambda *args: None, code, "", [fused(*one) for one in ops])
    place = kernel.varying_place()
    assert (place and (place["op"], place["line"])) == expected

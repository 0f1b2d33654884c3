"""Special programs under the native recorder: nothing is left out, and nothing is disturbed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from determinism.trace.opening import open_trace
from tests.torch_recorders import blind_spots, differences, record_lines, record_with
from tests.torch_runs import plain
from tests.torch_training import mlp

pytestmark = pytest.mark.native_recorder


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[None]:
    """Provide a process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step(net: nn.Module, x: Tensor) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def data_parallel() -> Any:
    net = nn.parallel.DistributedDataParallel(mlp())
    made = step(net, torch.ones(2, 6))
    reduced = torch.ones(3)
    work = dist.all_reduce(reduced, async_op=True)
    assert work is not None
    work.wait()
    return [torch.tensor(made), reduced]


def sharded_tensors() -> Any:
    mesh = init_device_mesh("cpu", (1,))
    left = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0)])
    right = distribute_tensor(torch.ones(4, 2), mesh, [Replicate()])
    return (left @ right).relu().sum().full_tensor()


def sharded_parameters() -> Any:
    net = mlp()
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    return torch.tensor(step(net, torch.ones(2, 6)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [data_parallel, sharded_tensors, sharded_parameters], ids=lambda it: it.__name__)
def test_both_recorders_make_the_same_records_of_distributed_programs(
    program: Callable[[], Any], tmp_path: Path, ranks: None
) -> None:
    assert_same_records(program, tmp_path)


def several_threads() -> Any:
    """Run threads that start together and end one by one while others still run ops."""
    made: dict[int, Tensor] = {}
    turns = threading.Barrier(3)

    def work(number: int) -> None:
        x = torch.full((4,), float(number), requires_grad=True)
        turns.wait()
        for _ in range(20 * (number + 1)):
            made[number] = (x * x).exp()
        made[number].sum().backward()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    torch.ones(3).add_(1)
    for thread in threads:
        thread.join()
    return [made[number] for number in range(3)]


def test_threads_that_end_while_others_are_recorded_have_complete_records(tmp_path: Path) -> None:
    counts = []
    for recorder in ("python", "native"):
        record_with(recorder, several_threads, tmp_path / recorder)
        # The autograd engine accumulates gradients in place if no mode is active.
        ops = [
            line.split()[2].partition("(")[0].replace("add_.", "add.")
            for line in record_lines(tmp_path / recorder)
            if " thread=0 " not in line
        ]
        counts.append(Counter(ops))
        assert blind_spots(tmp_path / recorder) == []
    assert counts[0] == counts[1]
    assert counts[0]["exp"] == 20 + 40 + 60


FORKS = 20


def forking_while_threads_draw() -> None:
    """Fork children that draw, while threads draw from the same generator."""
    stop = threading.Event()

    def draw() -> None:
        # An empty tensor: PyTorch itself then takes no lock that a child could find held.
        nothing = torch.empty(0)
        while not stop.is_set():
            nothing.normal_()

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(FORKS):
            child = os.fork()
            if child == 0:
                torch.ones(3).normal_()
                os._exit(0)
            assert has_ended(child), "a forked child hangs"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def has_ended(child: int) -> bool:
    """Whether a child ends within a minute; otherwise it is killed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_child_forked_while_threads_draw_does_not_hang(tmp_path: Path) -> None:
    record_with("native", forking_while_threads_draw, tmp_path / "trace")

    children = [
        process for process in open_trace(tmp_path / "trace").processes if process.description["process"][5:].isdigit()
    ]
    assert len(children) == FORKS
    assert {process.description["recorder"] for process in children} == {"native"}
    # `ones` and `normal_`.
    assert [sum(chunk.rows for chunk in process.chunks()) for process in children] == [2] * FORKS


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_the_profiler_sees_the_same_ops_as_without_recording(tmp_path: Path) -> None:
    def profiled() -> list[str]:
        x = torch.ones(4, 6)
        net = mlp()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            net(x).sum().backward()
            # The recorder needs ops of its own for a copy of strided memory, a generator's state, a new layout and a value.
            x[:, ::2].mul_(torch.rand(4, 3))
            x.to_sparse().sum().item()
        return [event.name for event in profiler.events() if event.name.startswith("aten::")]

    expected, found = profiled(), []
    record_with("native", lambda: found.extend(profiled()), tmp_path / "trace")
    assert found == expected and "aten::addmm" in found
    ops = [line.split()[2] for line in record_lines(tmp_path / "trace")]
    assert sum(op.startswith("addmm") for op in ops) == sum(name == "aten::addmm" for name in expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiler_makes_the_same_graphs_as_without_recording(backend: str, tmp_path: Path) -> None:
    def compiled() -> dict[str, Any]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

        def function(x: Tensor) -> Tensor:
            y = (x * 2).sin()
            torch._dynamo.graph_break()
            return y.relu() if y.sum().item() > 0 else y.exp()

        optimized = torch.compile(function, backend=backend)
        for length in (3, 4, 5):
            optimized(torch.linspace(0, 1, length, requires_grad=True)).sum().backward()
        counters = torch._dynamo.utils.counters
        return {name: dict(counters[name]) for name in ("stats", "graph_break", "frames", "recompiles")}

    expected, found = compiled(), []
    record_with("native", lambda: found.append(compiled()), tmp_path / "native")
    assert found == [expected]
    assert expected["stats"]["unique_graphs"] > 1
    assert_same_records(compiled, tmp_path / "both")


def checkpointed() -> Any:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    net = mlp()
    for reentrant in (False, True):
        checkpoint(net, x * 2, use_reentrant=reentrant).sum().backward()
    return x.grad


def complex_numbers() -> Any:
    x = torch.complex(torch.arange(4.0), torch.ones(4)).requires_grad_()
    made = (x * x.abs()).real
    return [made, torch.view_as_real(x.detach()), torch.ones(3, dtype=torch.complex32) + 1]


def own_memory_and_sizes() -> Any:
    x = torch.ones(6)
    x.resize_(3)
    y = torch.empty(0).set_(x)
    y.untyped_storage().resize_(64)
    return [x.clone(), torch.cat([torch.ones(2)] * 300), torch.zeros(0, 3).sum(0), torch.ones(2, 0) @ torch.ones(0, 2)]


def without_recorded_inputs() -> Any:
    with torch.inference_mode():
        x = torch.ones(3).mul_(2)
    return [x + 1, torch._foreach_add([torch.ones(2), torch.zeros(0)], 1.0)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program",
    [checkpointed, complex_numbers, own_memory_and_sizes, without_recorded_inputs],
    ids=lambda it: it.__name__,
)
def test_both_recorders_make_the_same_records(program: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = plain(program)
    assert assert_same_records(program, tmp_path) == expected


def test_a_redefined_op_is_recorded_with_its_new_definition(tmp_path: Path) -> None:
    """As happens if the notebook cell that defines it runs again."""

    def defined(schema: str, function: Callable[..., Any], *arguments: Any) -> None:
        with torch.library._scoped_library("determinism_test", "DEF") as scoped:
            scoped.define(f"made{schema}")
            scoped.impl("made", function, "CPU")
            torch.ops.determinism_test.made(*arguments)

    def add_to(x: Tensor, number: int) -> None:
        x.add_(number)

    def program() -> Any:
        x = torch.ones(3)
        for number in range(3):
            defined("(Tensor x) -> Tensor", torch.exp, x)
            defined("(Tensor(a!) x, int number) -> ()", add_to, x[:1], number)
        return x + 1

    assert_same_records(program, tmp_path)


def assert_same_records(program: Callable[[], Any], folder: Path) -> str:
    """Assert that both recorders make the same records and get the same result, which is returned."""
    results = set()
    for recorder in ("python", "native"):
        torch.manual_seed(1)
        results.add(record_with(recorder, program, folder / recorder))
        assert [spot for spot in blind_spots(folder / recorder) if spot["id"] == "handler-failed"] == []
    found = [
        [line.replace(" OP add_.", " OP add.") for line in record_lines(folder / name)] for name in ("python", "native")
    ]
    assert len(found[0]) > 3
    assert differences(*found) == []
    (result,) = results
    return result

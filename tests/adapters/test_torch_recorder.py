"""The content of a record: the producer of each input and the line of user code; and failures of the recorder."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import determinism
from determinism.frameworks.torch.recorder import Recorder
from determinism.trace.opening import open_trace
from determinism.types import Access, Phase, Role, Verdict
from tests.torch_runs import line_of, named, only, record_rows, recorded, rows

HERE = __file__


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


def test_a_storage_at_a_reused_address_is_a_new_storage(tmp_path: Path) -> None:
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


def test_sweeping_dead_storages_keeps_live_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determinism.frameworks.torch.edges._NEW_BETWEEN_SWEEPS", 16)

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


def test_inference_tensors_are_tracked(tmp_path: Path) -> None:
    def function() -> Any:
        with torch.inference_mode():
            x = torch.ones(3)
            x.add_(1)
            x.exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").producers == [only(found, "add_.Tensor").number]


@pytest.mark.parametrize("broken", ["_after", "place", "append", "_generator_before"])
def test_failing_handler_becomes_a_blind_spot(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken in ("_after", "_generator_before"):
        # For ordinary ops the native recorder does this in C++.
        monkeypatch.setenv("DETERMINISM_RECORDER", "python")
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
    spots = [spot for spot in spots if spot["id"] != "formulas-unaudited"]  # Present with all versions but one.
    assert {(spot["id"], spot["reason"]) for spot in spots} == {("handler-failed", "ValueError: out of luck")}
    assert sum(spot["count"] for spot in spots) >= len(calls) // 3
    rows(tmp_path / "trace")


def test_exceptions_of_the_program_are_not_blind_spots(tmp_path: Path) -> None:
    def function() -> Any:
        with pytest.raises(RuntimeError, match="size|shape"):
            torch.ones(2) @ torch.ones(3)
        with pytest.raises(IndexError):
            torch.ones(2)[4]
        torch.ones(3).exp()

    found = record_rows(function, tmp_path)
    assert only(found, "exp").role is Role.OP
    assert not open_trace(tmp_path).processes[0].description["blind_spots"]


def test_a_storage_may_be_resized_to_zero(tmp_path: Path) -> None:
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


def test_zero_tensors_without_memory_are_not_blind_spots(tmp_path: Path) -> None:
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


def test_nothing_remains_patched_after_a_recording(tmp_path: Path) -> None:
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


def test_recordings_leave_no_open_file(tmp_path: Path) -> None:
    def training() -> Any:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        for batch in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
            model(batch).sum().backward()
            optimizer.step()

    def num_open() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    # Files that a library opens only once are open after the first recording.
    record_rows(training, tmp_path / "first")
    before = num_open()
    for number in range(3):
        record_rows(training, tmp_path / str(number))
    # Fewer if files of earlier tests were closed in the meantime.
    assert num_open() <= before


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


def test_profiler_that_keeps_stacks_sees_modules(tmp_path: Path) -> None:
    """The profiler reads the local variable `self` of the frame of each module call; without it the process crashes."""
    with determinism.record(tmp_path):
        called = nn.Module.__call__.__code__
        assert called.co_varnames[0] == "self"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiled:
            nn.Linear(2, 2)(torch.ones(1, 2))
    assert any("nn.Module: Linear" in event.key for event in profiled.key_averages(group_by_stack_n=1))


class Counting:
    """Notes every call that a mode of the program sees."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []


class CountingOps(Counting, TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked.append(str(function))
        return function(*args, **(kwargs or {}))


class CountingFunctions(Counting, TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked.append(str(getattr(function, "__name__", function)))
        return function(*args, **(kwargs or {}))


def trained_under_a_mode(mode: Any) -> list[str]:
    with mode() as counting:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            loss = model(torch.randn(3, 2)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.tolist()
            model.weight.detach().numpy()
    return list(counting.asked)


@pytest.mark.parametrize("mode", [CountingOps, CountingFunctions])
def test_modes_of_the_program_do_not_see_the_recorder(mode: Any, tmp_path: Path) -> None:
    plain = trained_under_a_mode(mode)
    with determinism.record(tmp_path):
        assert trained_under_a_mode(mode) == plain


def test_secrets_in_arguments_are_distinguished_but_not_stored(tmp_path: Path) -> None:
    library = torch.library.Library("secrets_test", "FRAGMENT")
    library.define("fetched(Tensor x, str address) -> Tensor")
    library.impl("fetched", lambda x, address: x + 1, "CompositeExplicitAutograd")
    addresses = [f"https://ada:{secret}@host/data" for secret in ("hunter2", "hunter3", "hunter2")]
    found = record_rows(
        lambda: [torch.ops.secrets_test.fetched(torch.ones(2), one) for one in addresses], tmp_path / "trace"
    )

    stored = b"".join(file.read_bytes() for file in (tmp_path / "trace").rglob("*") if file.is_file())
    assert b"hunter" not in stored
    texts = [row.arguments for row in named(found, "secrets_test::fetched")]
    assert all("https://***@host/data" in str(text) for text in texts)
    assert texts[0] == texts[2] != texts[1]

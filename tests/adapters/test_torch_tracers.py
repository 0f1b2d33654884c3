"""Tracers, exporters and modes behave the same with and without recording: graphs, results, files, errors, warnings."""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import determinism
from determinism.trace.opening import open_trace
from determinism.types import Kind, Verdict
from tests.torch_runs import compare_program, tensors_in

IMAGES = torch.linspace(0, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(256, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.convolution(images))) * 2 + 1
        return self.last(hidden.flatten(1))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def content(file: io.BytesIO | str) -> list[tuple[str, str]]:
    """The parts of a saved archive, without the random serialization id and without names numbered by a per-process counter."""
    with zipfile.ZipFile(file) as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return [
        (
            re.sub(r"___torch_mangle_\d+", "", name),
            hashlib.sha256(re.sub(rb"_*torch_mangle_\d+", b"", part)).hexdigest(),
        )
        for name, part in sorted(parts.items())
        if not name.endswith("serialization_id")
    ]


def saved(save: Callable[..., None], thing: Any) -> list[tuple[str, str]]:
    file = io.BytesIO()
    save(thing, file)
    return content(file)


def jit_trace_number() -> Any:
    traced = torch.jit.trace(lambda z: z * 2, torch.ones(2))
    return traced.graph, traced(torch.ones(3))


def jit_trace_network() -> Any:
    traced = torch.jit.trace(net().eval(), IMAGES)
    traced(IMAGES).sum().backward()
    return traced.code, traced(IMAGES), traced.convolution.weight.grad


def jit_trace_training() -> Any:
    network = net()
    traced = torch.jit.trace(network, IMAGES, check_trace=False)
    return traced.graph, traced(IMAGES), network.norm.running_mean


def jit_trace_files() -> Any:
    # The files hold names, files and lines of all stack frames, and the lengths of names numbered by a per-process counter: reset the counter.
    torch._C._jit_clear_class_registry()
    return saved(torch.jit.save, torch.jit.trace(net().eval(), IMAGES))


def jit_trace_takes_values() -> Any:
    def function(z: torch.Tensor) -> torch.Tensor:
        return z * z.tolist()[0] + float(z.numpy().sum()) + torch.tensor(3.0)

    return torch.jit.trace(function, torch.ones(2)).graph


def jit_trace_gradient() -> Any:
    def function(z: torch.Tensor) -> torch.Tensor:
        leaf = z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
        return gradient * 3

    return torch.jit.trace(function, torch.ones(2), check_trace=False).graph


def jit_trace_within_itself() -> Any:
    inner = torch.jit.trace(lambda z: z * 2, torch.ones(2))
    outer = torch.jit.trace(lambda z: inner(z) + torch.jit.trace(lambda y: y / 2, z)(z), torch.ones(2))
    return outer.graph, outer(torch.ones(2))


def jit_trace_raises() -> Any:
    def function(z: torch.Tensor) -> torch.Tensor:
        raise ValueError("in the traced function")

    torch.jit.trace(function, torch.ones(2))


def jit_trace_graph() -> Any:
    return torch.jit._get_trace_graph(net().eval(), IMAGES)


def jit_script() -> Any:
    scripted = torch.jit.script(net())
    results = [scripted(IMAGES) for _ in range(3)]
    frozen = torch.jit.freeze(torch.jit.script(net().eval()))
    return scripted.code, results, frozen.graph, [frozen(IMAGES) for _ in range(3)]


def jit_loaded() -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(net().eval(), IMAGES), file)
    file.seek(0)
    return torch.jit.load(file)(IMAGES)


def exported() -> Any:
    program = torch.export.export(net().eval(), (IMAGES,))
    return str(program), program.module()(IMAGES), str(program.run_decompositions()), saved(torch.export.save, program)


def exported_strictly() -> Any:
    shapes = ({0: torch.export.Dim("batch")},)
    return str(torch.export.export(net().eval(), (IMAGES,), dynamic_shapes=shapes, strict=True))


def symbolic_trace() -> Any:
    traced = torch.fx.symbolic_trace(net().eval())
    return traced.code, traced(IMAGES), torch.fx.Interpreter(traced).run(IMAGES)


def made_fx() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x[:, 1:].t() * 2).sin().sum() + torch.rand(3).sum() + x.t().sum(0).tolist()[0]

    graphs = [make_fx(function, tracing_mode="real")(torch.ones(3, 2))]
    graphs += [
        make_fx(lambda x: (x[:, 1:] * 2).sin(), tracing_mode=mode)(torch.ones(3, 2)) for mode in ("fake", "symbolic")
    ]
    return [(graph.code, graph(torch.ones(3, 2))) for graph in graphs]


def made_fx_gradient() -> Any:
    network = net().eval()
    graph = make_fx(lambda x: torch.autograd.grad(network(x).sum(), list(network.parameters())))(IMAGES)
    return graph.code, graph(IMAGES)


def functionalized() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        copied = x.clone()
        copied.add_(1)
        copied[0] = 3
        return copied

    functional = torch.func.functionalize(function)
    return functional(torch.ones(3)), make_fx(functional)(torch.ones(3)).code


def transformed() -> Any:
    x = torch.arange(3.0)
    shown: list[str] = []
    network = net().eval()
    parameters = dict(network.named_parameters())

    def loss(parameters: Any, image: torch.Tensor) -> torch.Tensor:
        shown.append(repr(image)[:40])
        return torch.func.functional_call(network, parameters, (image[None],)).sum()

    def wave(a: torch.Tensor) -> torch.Tensor:
        return (a * 2).sin().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, IMAGES)
    value, pullback = torch.func.vjp(wave, x)
    drawn = torch.func.vmap(lambda a: a + torch.rand(3), randomness="different")(torch.ones(2, 3))
    derived = torch.func.hessian(wave)(x), torch.func.jvp(wave, (x,), (x,)), torch.func.jacfwd(wave)(x)
    return each["last.weight"], value, pullback(torch.tensor(1.0)), derived, drawn, shown


def transformed_takes_a_value() -> Any:
    return torch.func.vmap(lambda x: x * x.sum().item())(torch.ones(2, 3))


def fake() -> Any:
    with FakeTensorMode() as mode:
        network = Net()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        loss = network(torch.ones(2, 3, 8, 8)).sum()
        loss.backward()
        optimizer.step()
        shown = [repr(loss), repr(network.last.weight.grad), str(torch.tensor([1.0, 2.0]))]
    with FakeTensorMode(allow_non_fake_inputs=True):
        shown.append(repr(IMAGES * 2))
    return shown, repr(mode.from_tensor(IMAGES))


def fake_takes_a_value() -> Any:
    with FakeTensorMode():
        return torch.ones(2).sum().item()


def fake_takes_a_list() -> Any:
    with FakeTensorMode():
        return torch.ones(2).tolist()


def meta() -> Any:
    with torch.device("meta"):
        network = Net()
        optimizer = torch.optim.Adam(network.parameters())
        loss = network(torch.empty(2, 3, 8, 8)).sum()
        loss.backward()
        optimizer.step()
    shown = repr(loss), repr(copy.deepcopy(network).last.weight)
    filled = network.to_empty(device="cpu")
    for parameter in filled.parameters():
        nn.init.constant_(parameter, 0.1)
    return shown, filled.last.weight


def meta_takes_a_value() -> Any:
    return torch.empty(2, device="meta").sum().item()


def packaged() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "package.pt")
        with torch.package.PackageExporter(path) as exporter:
            exporter.extern("**")
            exporter.save_pickle("models", "model.pkl", nn.Linear(2, 3).eval())
            exporter.save_source_string("settings", "WIDTH = 3\n")
        importer = torch.package.PackageImporter(path)
        loaded = importer.load_pickle("models", "model.pkl")
        return content(path), loaded(torch.ones(2)), importer.import_module("settings").WIDTH


def dispatch_mode() -> Any:
    seen: list[str] = []

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Listing():
        loss = net()(IMAGES.transpose(2, 3)).t().sum()
        loss.backward()
        repr(IMAGES.transpose(0, 1)[0])
        torch.save(loss.detach(), io.BytesIO())
    return seen


def function_mode() -> Any:
    seen: list[str] = []

    class Listing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    with Listing():
        loss = net()(IMAGES.transpose(2, 3)).t().sum()
        loss.backward()
        repr(loss)
    return seen


def onnx_by_tracing() -> Any:
    pytest.importorskip("onnx")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net().eval(), (IMAGES,), file, dynamo=False)
    return hashlib.sha256(file.getvalue()).hexdigest()


def onnx_by_exporting() -> Any:
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(net().eval(), (IMAGES,), dynamo=True, verbose=False)
    return str(program.model.graph)


def compiled_ahead_of_time() -> Any:
    importlib.import_module("torch._inductor")
    program = torch.export.export(net().eval(), (IMAGES,))
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder) / "model.pt2"))
        return torch._inductor.aoti_load_package(path)(IMAGES)


QUICK = [
    jit_trace_number, jit_trace_network, jit_trace_training, jit_trace_files, jit_trace_takes_values, jit_trace_gradient,
    jit_trace_within_itself, jit_trace_raises, jit_trace_graph, jit_script, jit_loaded, symbolic_trace, made_fx,
    made_fx_gradient, functionalized, transformed, transformed_takes_a_value, fake, fake_takes_a_value,
    fake_takes_a_list, meta, meta_takes_a_value, packaged, dispatch_mode, function_mode,
]  # fmt: skip
SLOW = [exported, exported_strictly, onnx_by_tracing, onnx_by_exporting, compiled_ahead_of_time]

_NAMES_THAT_VARY = re.compile(r"___torch_mangle_\d+|0x[0-9a-f]{6,}")


def outcome(program: Callable[[], Any]) -> tuple[str, str, list[tuple[str, str, str, int]]]:
    """The result or error of a program, and its warnings with their places."""
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = program()
            kind, text = "gave", str(result) + str([tensor.tolist() for tensor in tensors_in(result)])
        except Exception as error:
            kind, text = type(error).__name__, str(error)
    given = [(one.category.__name__, str(one.message), one.filename, one.lineno) for one in caught]
    return kind, _NAMES_THAT_VARY.sub("", text), given


def assert_undisturbed(program: Callable[[], Any], folder: Path) -> None:
    outcomes = []
    # PyTorch gives some warnings only once per process, so the first outcome is discarded.
    for context in (nullcontext(), nullcontext(), determinism.record(folder)):
        with context:
            outcomes.append(outcome(program))
    _, plain, recorded = outcomes
    assert recorded == plain
    (process,) = open_trace(folder).processes
    assert [spot for spot in process.description["blind_spots"] if spot["id"] == "handler-failed"] == []


@pytest.mark.parametrize("program", QUICK, ids=lambda program: program.__name__)
def test_quick_program_behaves_as_unrecorded(program: Callable[[], Any], tmp_path: Path) -> None:
    assert_undisturbed(program, tmp_path / "trace")


@pytest.mark.thorough("samples")
@pytest.mark.parametrize("program", SLOW, ids=lambda program: program.__name__)
def test_slow_program_behaves_as_unrecorded(program: Callable[[], Any], tmp_path: Path) -> None:
    assert_undisturbed(program, tmp_path / "trace")


def test_dynamo_imported_before_the_recording_compiles_whole_graphs(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    plain = torch.compile(lambda x: module(x) * 2, backend="eager", fullgraph=True)(x)
    with determinism.record(tmp_path / "trace"):
        recorded = torch.compile(lambda x: module(x) * 2, backend="eager", fullgraph=True)(x)
    assert torch.equal(plain, recorded)
    assert nn.Module.__call__ is importlib.import_module("torch._dynamo.utils").unpatched_nn_module_call


class Averaging(nn.Module):
    """Keeps a running average of its inputs in a buffer, as batch normalization does, optionally with noise."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(next(COUNTER)))
        self.average.mul_(0.9).add_(x.mean(0) * 0.1 + drawn * self.noise)
        return x - self.average


COUNTER = count()


def averaged_while_traced(noise: float) -> Callable[[], Any]:
    def program() -> Any:
        module = Averaging(noise)
        torch.jit.trace(module, torch.ones(2, 3), check_trace=False)
        return module.average * 2

    return program


@pytest.mark.filterwarnings("ignore:`torch.jit.trace.* is deprecated")
def test_a_buffer_that_changed_during_tracing_is_compared(tmp_path: Path) -> None:
    assert compare_program(averaged_while_traced(0.0), tmp_path / "equal").verdict is Verdict.SAME
    comparison = compare_program(averaged_while_traced(1.0), tmp_path / "noise")
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.op, comparison.first_divergence.kind) == ("aten::mul.Tensor", Kind.DATA)
    (spot,) = comparison.recorded.blind_spots
    assert (spot.identifier, spot.count) == ("traced", 1)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace.* is deprecated")
def test_the_functions_of_the_tracer_are_restored(tmp_path: Path) -> None:
    names = ("_create_graph_by_tracing", "_create_function_from_trace", "_create_function_from_trace_with_dict")
    before = [vars(torch._C)[name] for name in names], torch._C.ScriptModule._create_method_from_trace
    with determinism.record(tmp_path / "trace"):
        assert torch._C._create_graph_by_tracing is not before[0][0]
        called = nn.Module.__call__
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        with pytest.raises(ValueError, match="in the traced function"):
            jit_trace_raises()
        assert nn.Module.__call__ is called
        assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == modes
    assert ([vars(torch._C)[name] for name in names], torch._C.ScriptModule._create_method_from_trace) == before

"""`determinism.patch` with PyTorch: what is replaced, when the stock kernel still runs, and that everything is restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import determinism
from determinism.frameworks.torch.patches import catalogue
from determinism.frameworks.torch.patches.catalogue import ALERTS, PATCHES
from determinism.frameworks.torch.patches.patch import Patch, _in_place_now, alerts_on_cpu
from tests.torch_patched import ON_CPU, close, named, patched_cpu

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]
ALERT = "does not have a deterministic implementation"
PICTURE = (1, 1, 4, 4)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def unpooled() -> torch.Tensor:
    return F.max_unpool2d(torch.ones(PICTURE), torch.zeros(PICTURE, dtype=torch.int64), 2)


def put(accumulate: bool = False) -> torch.Tensor:
    return torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([2.0, 5.0]), accumulate=accumulate)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("call", [unpooled, put])
def test_an_op_that_raises_on_the_cpu_does_not_raise_while_patched(call: Any) -> None:
    with pytest.raises(RuntimeError, match=ALERT):
        call()
    with determinism.patch():
        assert torch.equal(call(), call())
    with pytest.raises(RuntimeError, match=ALERT):
        call()


def test_replaced_ops_are_listed_and_a_second_patch_replaces_nothing() -> None:
    with determinism.patch() as patches:
        told = patches.replaced["torch"]
        assert {"put_ on the CPU", "max_unpool2d on the CPU", "resize_ of quantized tensors on the CPU"} <= set(told)
        assert "histc on the CPU" not in told  # it does not alert on the CPU
        with determinism.patch() as again:
            assert again.replaced["torch"] == []
        torch.use_deterministic_algorithms(True)
        unpooled()  # leaving the inner context restored nothing
        torch.use_deterministic_algorithms(False)


def test_probing_leaves_modes_and_random_numbers_alone() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.get_rng_state()
    determinism.patch().restore()
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    torch.use_deterministic_algorithms(False)


def test_ops_that_a_version_lacks_are_listed_and_are_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Patch("new", "an op of tomorrow", ("op_of_tomorrow",), torch.clone, lambda device: ())
    monkeypatch.setattr(catalogue, "PATCHES", (*PATCHES, lacking))
    with determinism.patch() as patches:
        assert patches.absent == {"torch": ["an op of tomorrow"]}
        assert "torch: not in this version: an op of tomorrow" in str(patches)
        assert "put_ on the CPU" in patches.replaced["torch"]


def test_a_version_that_cannot_keep_stock_kernels_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    assert "torch.library.get_kernel" in determinism.patch().skipped["torch"]


def test_only_an_op_that_raises_counts_as_alerting() -> None:
    assert alerts_on_cpu(named("max-unpool2d"))
    assert not alerts_on_cpu(named("histc"))


def test_every_patch_has_an_example_that_runs_with_the_installed_version() -> None:
    with patched_cpu() as ran:
        for patch in ON_CPU:
            before = ran[patch.identity]
            patch.run_example(torch.device("cpu"))
            assert ran[patch.identity] > before, patch.identity
    assert len({patch.identity for patch in PATCHES}) == len(PATCHES)
    assert set(ALERTS) < {patch.identity for patch in PATCHES}


@pytest.mark.usefixtures("deterministic")
def test_with_all_patches_nothing_raises_in_deterministic_mode() -> None:
    with patched_cpu():
        for patch in ON_CPU:
            patch.run_example(torch.device("cpu"))


@pytest.mark.usefixtures("deterministic")
def test_unsupported_arguments_go_to_the_stock_kernel_with_its_alert() -> None:
    with patched_cpu() as ran:
        with pytest.raises(RuntimeError, match=ALERT):
            torch.ops.aten.max_unpool2d(torch.ones(1, 0, 2, 2), torch.zeros(1, 0, 2, 2, dtype=torch.int64), [4, 4])
        with pytest.raises(RuntimeError, match=ALERT):
            torch.zeros(3).put_(torch.tensor([0, 1], dtype=torch.int64), torch.ones(3))
        assert not ran


def test_out_and_in_place_variants_are_replaced_too() -> None:
    given, index, source = torch.ones(4), torch.tensor([1, 1, 3]), torch.tensor([1.0, 2.0, 4.0])
    expected = torch.tensor([1.0, 4.0, 1.0, 5.0])
    with patched_cpu() as ran:
        assert torch.equal(given.scatter_add(0, index, source), expected)
        out = torch.empty(0)
        assert torch.scatter_add(given, 0, index, source, out=out) is out and torch.equal(out, expected)
        changed = given.clone()
        assert changed.scatter_add_(0, index, source) is changed and torch.equal(changed, expected)
        assert torch.equal(given, torch.ones(4))
        assert ran["scatter-add"] == 3
        values, places = torch.empty(2), torch.empty(2, dtype=torch.int64)
        torch.median(torch.tensor([[3.0, 1, 2], [5, 5, 5]]), 1, out=(values, places))
        assert values.tolist() == [2, 5] and places.tolist() == [2, 1]
        assert ran["median"] == 1


def test_out_with_a_different_dtype_is_refused_by_the_stock_kernel() -> None:
    def wrong() -> str:
        with pytest.raises(RuntimeError) as caught:
            torch.scatter_add(torch.ones(2), 0, torch.tensor([0]), torch.ones(1), out=torch.empty(2, dtype=torch.int64))
        return str(caught.value)

    stock = wrong()
    with patched_cpu():
        assert wrong() == stock


def test_out_with_a_different_shape_is_resized_with_a_warning() -> None:
    with patched_cpu(), pytest.warns(UserWarning, match="resized"):
        out = torch.histc(torch.tensor([1.0, 2.0]), 2, 0, 3, out=torch.empty(5))
    assert out.tolist() == [1, 1]


def test_autograd_formulas_are_kept_and_call_the_patched_backward() -> None:
    given = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    with patched_cpu() as ran:
        result = F.interpolate(given, scale_factor=2, mode="bicubic")
        assert type(result.grad_fn).__name__ == "UpsampleBicubic2DBackward0"
        (gradient,) = torch.autograd.grad(result.square().sum(), given, create_graph=True)
        gradient.sum().backward()
    assert ran["interpolate-bicubic"] == 2  # once more for the second derivative
    assert given.grad is not None and given.grad.abs().sum() > 0


def test_autocast_does_not_apply_within_a_replacement() -> None:
    given = torch.randn(300, 40, requires_grad=True)
    index = torch.randint(0, 9, (300,))
    with patched_cpu() as ran, torch.autocast("cpu", dtype=torch.bfloat16):
        result = torch.zeros(9, 40).index_add(0, index, given)
    assert ran["index-add"] and result.dtype == torch.float32
    assert close(torch.zeros(9, 40).index_add(0, index, given), result)


def test_function_modes_do_not_see_the_calls_of_a_replacement() -> None:
    class Watching(TorchFunctionMode):
        seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    given = torch.ones(3)
    with patched_cpu(), Watching() as watching:
        torch.kthvalue(given, 2)
    assert watching.seen == ["kthvalue"]


def test_a_patched_op_is_dispatched_as_one_op() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    given, index, source = torch.zeros(3), torch.tensor([0, 0]), torch.ones(2)
    with patched_cpu() as ran, Watching() as watching:
        given.index_add_(0, index, source)
    assert ran["index-add"] and watching.seen == ["aten.index_add_.default"]


def test_in_place_writes_increase_the_version_and_inference_mode_works() -> None:
    given = torch.zeros(3)
    with patched_cpu():
        before = given._version
        given.index_add_(0, torch.tensor([0, 0]), torch.ones(2))
        assert given._version == before + 1
        with torch.inference_mode():
            assert torch.zeros(3).index_add(0, torch.tensor([0, 0]), torch.ones(2)).tolist() == [2, 0, 0]


def test_a_patch_under_vmap_gives_the_stock_result() -> None:
    given, index = torch.randn(5, 3, 8), torch.randint(0, 8, (5, 3, 6))

    def gathered(one: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: x.gather(1, where).square().sum())(one)

    stock = torch.func.vmap(gathered)(given, index)
    with patched_cpu() as ran:
        assert close(stock, torch.func.vmap(gathered)(given, index))
    assert ran["scatter-add"]


@pytest.mark.usefixtures("deterministic")
def test_compiled_programs_call_the_patches_and_tracing_does_not_raise() -> None:
    def program(given: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_unpool2d(given, indices, 2), given.median(3).values

    given = torch.randn(PICTURE, requires_grad=True)
    indices = torch.arange(16).view(PICTURE)
    compiled = torch.compile(program)
    with pytest.raises(Exception, match=ALERT):
        compiled(given, indices)
    torch._dynamo.reset()
    with patched_cpu() as ran, determinism.patch():
        expected = program(given, indices)
        eager = ran["median"]
        result = compiled(given, indices)
        result[1].sum().backward()
    torch._dynamo.reset()
    assert all(torch.equal(one, two) for one, two in zip(expected, result, strict=True))
    assert ran["median"] > eager


def test_bindings_are_forgotten_when_they_are_removed() -> None:
    with patched_cpu():
        assert ("histc", "CPU") in _in_place_now
    assert ("histc", "CPU") not in _in_place_now


def test_resized_quantized_tensors_hold_known_values() -> None:
    with determinism.patch():
        given = torch._empty_affine_quantized([2], scale=1.0, zero_point=3, dtype=torch.quint8)
        given.int_repr()
        torch.use_deterministic_algorithms(True)
        given.fill_(1.0).resize_(2, 2)
        torch.use_deterministic_algorithms(False)
        assert given.int_repr().tolist() == [[4, 4], [255, 255]]
        assert given.resize_(1, 2).int_repr().tolist() == [[4, 4]]


def test_no_replacement_mixes_devices() -> None:
    """Use the device `meta`, which refuses CPU tensors as a GPU does."""
    device = torch.device("meta")
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device=device).add(torch.ones(2))
    needing_values = ("histc", "bincount", "quantized-resize", "sparse-mm", "sparse-csr-mm")
    for patch in [one for one in PATCHES if one.identity not in needing_values]:
        given = patch.example(device)
        assert patch.supports(*given, **patch.named), patch.identity
        results = patch.run(*given, **patch.named)
        found = results if isinstance(results, tuple) else (results,)
        assert {one.device.type for one in found if one is not None} == {"meta"}

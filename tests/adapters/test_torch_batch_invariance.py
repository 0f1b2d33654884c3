"""Rows are compared by content across batches of different sizes, and the first op that treats them differently is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import determinism
from determinism.comparison.result import BatchFindings, BatchKind, Comparison
from determinism.errors import UsageError
from determinism.types import Kind, Verdict
from tests.torch_runs import line_of

ROWS, WIDTH = 24, 16


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    yield
    torch.set_num_threads(threads)


def rows() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def checked(
    function: Callable[[Any], Any], batch: Any, sizes: tuple[int, ...] = (2, 8, 24)
) -> tuple[Comparison, BatchFindings]:
    comparison = determinism.check_batch_invariance(function, batch, sizes=sizes)
    assert comparison.batch is not None
    spots = [spot for spot in comparison.recorded.blind_spots if spot.identifier == "handler-failed"]
    assert spots == []
    return comparison, comparison.batch


class RowWise(nn.Module):
    """Processes each element or row independently in every op."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.softmax(functional.gelu(self.norm(values)), -1)


class Sorting(RowWise):
    """Reorders the rows and restores their order, as a mixture of experts does."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        order = values[:, 0].argsort()
        return super().forward(values[order])[order.argsort()]


class Centering(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values - values.mean(0)  # CENTRE


class Comparing(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        likeness = values @ values.T
        return functional.softmax(likeness * 0.01, -1) @ values


class Noisy(nn.Module):
    """Draws random numbers in training and in evaluation mode."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.rand(len(values), 1)


class Sequences(nn.Module):
    """Works on tensors whose second dimension is the batch."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        times_first = values.transpose(0, 1).contiguous()
        return torch.tanh(times_first).cumsum(0).transpose(0, 1)


@pytest.mark.parametrize("model", [RowWise(), Sorting()], ids=["row-wise", "sorting"])
def test_rows_that_are_processed_independently_are_the_same(model: nn.Module) -> None:
    comparison, found = checked(model.eval(), rows())

    assert comparison.verdict is Verdict.SAME, comparison
    assert (found.rows_matched, found.results_differ) == (ROWS, False)
    assert found.places >= 4 and comparison.first_divergence is None


def test_a_second_dimension_that_holds_the_batch_is_found() -> None:
    comparison, found = checked(Sequences().eval(), torch.randn(ROWS, 5, 3))

    assert comparison.verdict is Verdict.SAME, comparison
    assert found.rows_matched == ROWS


def differs_by_itself(model: nn.Module, batch: torch.Tensor, size: int) -> bool:
    with torch.no_grad():
        whole = model(batch)
        return not all(torch.equal(model(part), whole[at * size :][:size]) for at, part in enumerate(batch.split(size)))


@pytest.mark.parametrize("width", [4, 64, 256, 768])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_verdict_on_linear_layers_is_correct(width: int, size: int) -> None:
    """The processor determines at which sizes the library switches to a different kernel."""
    model, batch = nn.Linear(width, width).eval(), torch.randn(32, width)
    expected = differs_by_itself(model, batch, size)
    comparison, found = checked(model, batch, (size, 32))

    assert (comparison.verdict is Verdict.DIFFERENT) == expected
    assert found.results_differ is expected and found.rows_matched == 32
    if expected:
        first = comparison.first_divergence
        assert first is not None and (first.op, first.kind, first.inputs_equal) == ("aten::addmm", Kind.OP, True)
        assert found.difference is not None and found.difference.kind is BatchKind.OP


def test_a_fix_of_a_convolution_is_suggested_only_if_it_helps() -> None:
    model, batch = nn.Conv2d(3, 8, 3).eval(), torch.randn(8, 3, 16, 16)
    varies = differs_by_itself(model, batch, 1)
    torch.backends.mkldnn.set_flags(False)
    varies_without = differs_by_itself(model, batch, 1)
    torch.backends.mkldnn.set_flags(True)
    comparison, _ = checked(model, batch, (1, 8))

    assert (comparison.verdict is Verdict.DIFFERENT) == varies
    expected = ["mkldnn-off"] if varies and not varies_without else []
    assert [fix.identifier for fix in comparison.fixes] == expected


def test_some_linear_layer_varies() -> None:
    """The tests above would prove nothing if no linear layer varied; which sizes do depends on the processor."""
    assert any(
        differs_by_itself(nn.Linear(width, width), torch.randn(32, width), size)
        for width in (64, 256, 768, 33, 100, 1000, 2048)
        for size in (1, 2, 4, 8, 16)
    )


@pytest.mark.parametrize("model", [nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, track_running_stats=False)])
def test_batch_norm_in_training_mode_is_named_and_fixed(model: nn.Module) -> None:
    comparison, found = checked(nn.Sequential(nn.ReLU(), model), rows())

    assert comparison.verdict is Verdict.DIFFERENT
    assert found.difference is not None and found.difference.kind is BatchKind.MIXING
    assert found.difference.is_training and [one.module for one in found.training] == ["1"]
    first = comparison.first_divergence
    assert first is not None and first.module == "1" and "batch_norm" in first.op
    has_kept = model.track_running_stats
    assert [fix.identifier for fix in comparison.fixes if fix.verified] == ["evaluation-mode"] * has_kept
    assert comparison.causes[0].identifier == "training-mode"
    assert comparison.causes[0].status == ("confirmed" if has_kept else "likely")
    assert model.training, "the mode is put back"


def test_batch_norm_in_evaluation_mode_is_the_same() -> None:
    comparison, _ = checked(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(WIDTH)).eval(), rows())

    assert comparison.verdict is Verdict.SAME, comparison


@pytest.mark.parametrize("model", [nn.Dropout(), nn.AlphaDropout(), nn.RReLU()], ids=lambda model: type(model).__name__)
def test_random_modules_in_training_mode_are_named_and_fixed(model: nn.Module) -> None:
    comparison, found = checked(nn.Sequential(nn.Tanh(), model), rows())

    assert comparison.verdict is Verdict.DIFFERENT
    assert found.difference is not None and found.difference.kind is BatchKind.RNG
    assert [one.name for one in found.training] == [type(model).__name__]
    assert [fix.code for fix in comparison.fixes] == ["model.eval()"]


def test_random_numbers_that_no_mode_switches_off_have_no_fix() -> None:
    comparison, found = checked(Noisy(), rows())

    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    assert comparison.first_divergence.op == "aten::rand"
    assert not comparison.fixes and [one.verified for one in found.tried] == [False]
    assert [cause.identifier for cause in comparison.causes] == ["random"]


@pytest.mark.parametrize(("model", "text"), [(Centering(), "# CENTRE"), (Comparing(), "likeness = ")])
def test_ops_that_mix_rows_are_named_with_their_line(model: nn.Module, text: str) -> None:
    comparison, found = checked(model.eval(), rows())
    first = comparison.first_divergence

    assert comparison.verdict is Verdict.DIFFERENT and first is not None and first.site is not None
    assert (Path(first.site.file), first.site.line) == (Path(__file__), line_of(type(model).forward, text))
    assert found.difference is not None and found.difference.kind is BatchKind.MIXING
    assert first.kind is Kind.DATA


def test_duplicated_rows_count_once() -> None:
    batch = rows()[:4].repeat(6, 1)
    comparison, found = checked(RowWise().eval(), batch, (4, 24))

    assert comparison.verdict is Verdict.SAME
    assert found.rows_matched == 4 and found.rows == {4: 4, 24: 4}


def test_duplicated_rows_with_different_results_are_different() -> None:
    class Numbered(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values + torch.arange(len(values), dtype=values.dtype).unsqueeze(1) // 2

    comparison, _ = checked(Numbered().eval(), rows()[:1].repeat(24, 1), (2, 24))

    assert comparison.verdict is Verdict.DIFFERENT


def test_absorbed_differences_are_reported_as_absorbed() -> None:
    """A matrix product varies, but the result computed from it does not."""

    class Rounding(nn.Linear):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return super().forward(values).mul(0.01).round().abs()  # without the sign of zero, which could vary

    model, batch = Rounding(256, 256).eval(), torch.randn(32, 256)
    varies = differs_by_itself(nn.Linear(256, 256), batch, 1)
    comparison, found = checked(model, batch, (1, 32))

    assert found.results_differ is False
    assert (comparison.verdict is Verdict.DIFFERENT) == comparison.absorbed == varies


def test_functions_and_nested_tensors_are_accepted() -> None:
    def predict(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(batch["a"]) * batch["b"][0], batch["b"][0].exp()

    comparison, found = checked(predict, {"a": rows(), "b": (rows(),)})

    assert comparison.verdict is Verdict.SAME and found.rows_matched == ROWS


def test_reading_values_in_between_changes_nothing() -> None:
    """Inference mode, whose tensors have no versions, changes nothing either."""

    def predict(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            made = torch.tanh(batch)
            assert made.sum().item() != torch.inf and made[0].tolist()
            return made

    comparison, _ = checked(predict, rows())

    assert comparison.verdict is Verdict.SAME and not comparison.recorded.blind_spots


def test_random_numbers_in_a_function_are_named() -> None:
    comparison, _ = checked(lambda batch: batch * torch.rand(len(batch), 1), rows())

    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    assert comparison.first_divergence.op == "aten::rand"


def test_a_model_that_depends_on_earlier_calls_is_never_the_same() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return values * self.calls

    comparison, _ = checked(Counting().eval(), rows())

    assert comparison.verdict is not Verdict.SAME


def test_results_without_rows_are_inconclusive() -> None:
    comparison, found = checked(lambda batch: 1.0, rows())

    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["batch-without-rows"]
    assert found.rows_matched == 0


@pytest.mark.parametrize("batch", [3.0, [torch.zeros(2, 2), torch.zeros(3, 2)], {"a": torch.tensor(1.0)}])
def test_batches_that_cannot_be_cut_are_refused(batch: Any) -> None:
    with pytest.raises(UsageError, match="cannot be cut") as raised:
        determinism.check_batch_invariance(RowWise(), batch)

    assert raised.value.identifier == "batch-unfit"


@pytest.mark.parametrize(("sizes", "count"), [((1,), 8), ((), 8), ((1, 16), 1), ((-1, 4), 8)])
def test_sizes_that_leave_nothing_to_compare_are_refused(sizes: tuple[int, ...], count: int) -> None:
    with pytest.raises(UsageError, match="do not give two sizes") as raised:
        determinism.check_batch_invariance(RowWise(), rows()[:count], sizes=sizes)

    assert raised.value.identifier == "batch-sizes"


def test_generators_and_the_model_are_restored() -> None:
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = rows()
    state = torch.get_rng_state()
    checked(model, batch)

    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.backends.mkldnn.enabled

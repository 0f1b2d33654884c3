"""Which values count as read: each rule with a dead difference and with a live one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from determinism.types import Kind, Verdict
from tests.torch_differences import assert_dead, assert_live, differing, noise, runs
from tests.torch_runs import compare_program


def test_unread_difference_is_dead_counted_and_listed(tmp_path: Path) -> None:
    def function() -> Any:
        differing(3).mul(2).exp()
        return torch.ones(2) + 1

    comparison = assert_dead(function, tmp_path)
    assert comparison.dead_differences == 1
    (listed,) = comparison.dead_first
    assert listed.op == "aten::full" and listed.site is not None and listed.site.function == "differing"
    assert not comparison.absorbed


def test_unread_difference_counts_when_strict(tmp_path: Path) -> None:
    def function() -> Any:
        differing(3).mul(2)
        return torch.ones(2)

    comparison = compare_program(function, tmp_path, strict=True)
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None and comparison.first_divergence.kind is Kind.ARGUMENT


def test_read_difference_is_live(tmp_path: Path) -> None:
    comparison = assert_live(lambda: differing(3).mul(2).exp(), tmp_path, Kind.ARGUMENT, "aten::full")
    assert comparison.dead_differences == 0


def test_dead_differences_before_a_live_one_do_not_hide_it(tmp_path: Path) -> None:
    def function() -> Any:
        differing(3).mul(2)
        noise(3)
        return differing(2) + 1

    comparison = assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full")
    assert comparison.first_divergence is not None
    assert comparison.dead_differences == 2


@pytest.mark.parametrize("write", ["zero_", "fill_", "copy_", "normal_", "out", "foreach"])
def test_whole_write_in_place_does_not_read_its_target(write: str, tmp_path: Path) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        x = differing(3)
        if write == "out":
            torch.exp(torch.ones(3), out=x)
        elif write == "foreach":
            torch._foreach_copy_([x], [torch.ones(3)])
        else:
            getattr(x, write)(*{"fill_": (2,), "copy_": (torch.ones(3),)}.get(write, ()))
        return x.exp()

    assert_dead(function, tmp_path)


@pytest.mark.parametrize("write", ["add_", "mul_", "clamp_", "index_put_accumulate", "scatter_add_", "foreach_add_"])
def test_write_in_place_that_uses_its_target_reads_it(write: str, tmp_path: Path) -> None:
    def function() -> Any:
        x = differing(3)
        if write == "index_put_accumulate":
            x.index_put_((torch.arange(3),), torch.ones(3), accumulate=True)
        elif write == "scatter_add_":
            x.scatter_add_(0, torch.arange(3), torch.ones(3))
        elif write == "foreach_add_":
            torch._foreach_add_([x], 1.0)
        else:
            getattr(x, write)(*{"add_": (1,), "mul_": (2,), "clamp_": (-1e6, 1e6)}[write])
        return x

    assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full")


def test_partial_write_covers_only_its_part(tmp_path: Path) -> None:
    def dead() -> Any:
        x = differing(4)
        x[:2] = 1
        return x[:2].exp()

    def live() -> Any:
        x = differing(4)
        x[:2] = 1
        return x[1:].exp()

    def covered() -> Any:
        x = differing(4)
        x[:2] = 1
        x[2:] = 2
        return x.exp()

    assert_dead(dead, tmp_path / "dead")
    assert_live(live, tmp_path / "live", Kind.ARGUMENT, "aten::full")
    assert_dead(covered, tmp_path / "covered")


def test_difference_next_to_a_part_that_an_op_rewrites_is_live(tmp_path: Path) -> None:
    def live() -> Any:
        x = torch.zeros(3, 3)
        x[1].copy_(differing(3))
        x[0].mul_(2)
        return x.exp()

    assert_live(live, tmp_path, Kind.ARGUMENT, "aten::full")


def test_difference_in_a_part_that_is_not_read_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.zeros(4)
        x[2].copy_(differing(1)[0])
        return x[:2].sum(), x[3:] + 1

    assert_dead(function, tmp_path)


@pytest.mark.parametrize(
    "look", ["zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "shape", "rand_like"]
)
def test_looking_at_the_shape_is_not_reading(look: str, tmp_path: Path) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        x = differing(3)
        if look == "shape":
            return torch.ones(x.shape[0]) * x.dim() * x.numel(), torch.arange(len(x))
        if look == "empty_like":
            return torch.empty_like(x).fill_(2)
        arguments = {"full_like": (2.0,), "new_zeros": ((2,),), "new_ones": ((2,),)}.get(look, ())
        method = look.startswith("new")
        return getattr(x, look)(*arguments) if method else getattr(torch, look)(x, *arguments)

    assert_dead(function, tmp_path)


def test_multiplying_by_zero_is_reading(tmp_path: Path) -> None:
    comparison = assert_live(lambda: differing(3) * 0, tmp_path, Kind.ARGUMENT)
    assert comparison.absorbed


def test_difference_that_vanished_after_a_live_reader_is_absorbed(tmp_path: Path) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * differing(3).clamp(max=0.5)).sum().backward()
        optimizer.step()
        return weight

    comparison = assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full")
    assert comparison.absorbed and comparison.first_visible is None


def test_difference_that_stays_is_not_absorbed(tmp_path: Path) -> None:
    def function() -> Any:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * differing(3)).sum().backward()
        optimizer.step()

    comparison = assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full")
    assert not comparison.absorbed
    assert comparison.first_visible is not None and comparison.first_visible.what == "loss"
    sorts = {visible.what.partition(" param_groups")[0] for visible in comparison.infected}
    assert {"loss", "gradient", "parameter"} <= sorts


def test_detached_difference_that_flows_into_a_gradient_by_autograd_is_live(tmp_path: Path) -> None:
    def function() -> Any:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * noise(3)).sum().backward()
        optimizer.step()

    assert_live(function, tmp_path, Kind.RNG, "aten::rand")


def test_difference_that_an_op_maps_to_an_equal_result_is_absorbed(tmp_path: Path) -> None:
    """The op's equal result does not show that it read equal elements."""

    def function() -> Any:
        return differing(4)[:2] > 0

    assert assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full").absorbed


def test_difference_outside_a_part_that_was_copied_equally_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        return torch.tensor([float(next(runs)), 1.0])[1:].clone().exp()

    assert_dead(function, tmp_path)

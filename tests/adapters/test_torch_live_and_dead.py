"""What counts as read: each rule both ways, once with a difference that is dead and once with one that is live."""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.comparison.result import Comparison
from determinism.types import Kind, Verdict
from tests.torch_runs import compare_program

runs = itertools.count()


def differing(*shape: int) -> Tensor:
    """Values that no other run has, made by a seeded op from an argument that differs."""
    return torch.full(shape, 1.0 + next(runs))


def in_one_run() -> bool:
    """True in every second run."""
    return next(runs) % 2 == 0


def noise(*shape: int) -> Tensor:
    """Values that no other run has, drawn from a generator that was not seeded."""
    own = torch.Generator()
    own.manual_seed(int.from_bytes(os.urandom(4), "little"))
    return torch.rand(*shape, generator=own)


def assert_dead(function: Callable[[], Any], folder: Path, *, at_least: int = 1) -> Comparison:
    comparison = compare_program(function, folder)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.dead_differences >= at_least
    assert comparison.first_divergence is None
    return comparison


def assert_live(function: Callable[[], Any], folder: Path, kind: Kind | None = None, op: str = "") -> Comparison:
    comparison = compare_program(function, folder)
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None
    assert kind is None or comparison.first_divergence.kind is kind, comparison.first_divergence
    assert op in comparison.first_divergence.op, comparison.first_divergence
    return comparison


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


def test_partial_write_leaves_the_rest(tmp_path: Path) -> None:
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


def test_difference_beside_an_op_that_reads_and_writes_one_part(tmp_path: Path) -> None:
    def live() -> Any:
        x = torch.zeros(3, 3)
        x[1].copy_(differing(3))
        x[0].mul_(2)
        return x.exp()

    assert_live(live, tmp_path, Kind.ARGUMENT, "aten::full")


def test_differing_part_of_a_tensor_that_is_not_read(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.zeros(4)
        x[2].copy_(differing(1)[0])
        return x[:2].sum(), x[3:] + 1

    assert_dead(function, tmp_path)


@pytest.mark.parametrize("look", ["zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "shape", "rand_like"])
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


def keep_in_file(x: Tensor) -> None:
    torch.save({"x": x}, io.BytesIO())


def convert(x: Tensor) -> Any:
    return x.__array__()


ESCAPES: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 3),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": convert,
    "str": str,
    "print": print,
    "repr of a list": lambda x: repr([x]),
    "format": lambda x: f"{x[0]:.3f}",
    "format of a whole tensor": lambda x: f"{x}",
    "pickle": pickle.dumps,
    "save": keep_in_file,
    "equal": lambda x: torch.equal(x, torch.ones(3)),
    "allclose": lambda x: torch.allclose(x, torch.ones(3)),
    "iteration": lambda x: [float(part) for part in x],
    "data_ptr": lambda x: x.data_ptr(),
    "dlpack": lambda x: x.__dlpack__(),
    "bytes of the storage": lambda x: bytes(x.untyped_storage()),
    "list of the storage": lambda x: x.untyped_storage().tolist(),
    "index": lambda x: [0] * 9 and list(range(9))[x[0].to(torch.int64).clamp(0, 8)],
    "memory view": lambda x: memoryview(x.numpy()),
    "copy.deepcopy and item": lambda x: copy.deepcopy(x)[0].item(),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_live(name: str, tmp_path: Path) -> None:
    def function() -> Any:
        ESCAPES[name](noise(3) * 8)

    comparison = assert_live(function, tmp_path, None)
    assert comparison.first_divergence is not None and comparison.first_divergence.op.startswith(("aten::manual", "aten::rand"))


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_of_equal_values_are_no_difference(name: str, tmp_path: Path) -> None:
    def function() -> Any:
        noise(3)
        ESCAPES[name](torch.arange(3.0))

    assert_dead(function, tmp_path)


class Kept(nn.Module):
    """Holds a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("what", ["parameter", "unused parameter", "gradient", "buffer", "optimizer state"])
def test_what_a_program_keeps_is_live(what: str, tmp_path: Path) -> None:
    def function() -> Any:
        net = Kept()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(2):
            optimizer.zero_grad()
            net(torch.ones(3)).sum().backward()
            if step == 1:
                with torch.no_grad():
                    target = {
                        "parameter": net.weight, "unused parameter": net.unused, "gradient": net.weight.grad,
                        "buffer": net.mean, "optimizer state": optimizer.state[net.weight]["momentum_buffer"],
                    }[what]  # fmt: skip
                    target.add_(differing(3))
            optimizer.step()

    comparison = assert_live(function, tmp_path, Kind.ARGUMENT, "aten::full")
    assert comparison.first_divergence is not None and comparison.first_divergence.step == 1
    assert comparison.first_visible is not None and comparison.first_visible.step == 1


def test_parameter_that_is_written_over_within_a_step_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        net = Kept()
        with torch.no_grad():
            net.weight.copy_(differing(3))
            net.weight.fill_(2)
        net(torch.ones(3)).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        return net.weight

    assert_dead(function, tmp_path)


def test_tensor_that_is_dropped_before_the_end_of_a_step_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        net = Kept()
        other = Kept()
        with torch.no_grad():
            other.weight.copy_(differing(3))
        other(torch.ones(3))
        del other
        net(torch.ones(3)).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        return net.weight

    assert_dead(function, tmp_path)


def test_extra_record_that_reaches_nothing_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.arange(3.0)
        if in_one_run():
            print(x.sum().item(), x.mean())
        return x + 1

    assert_dead(function, tmp_path)


def test_extra_record_whose_result_reaches_a_parameter_is_structure(tmp_path: Path) -> None:
    def function() -> Any:
        net = Kept()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss = net(torch.ones(3)).sum()
            if step == 1 and in_one_run():
                loss = loss * 2
            loss.backward()
            optimizer.step()

    comparison = assert_live(function, tmp_path, Kind.STRUCTURE)
    assert comparison.first_divergence is not None and comparison.first_divergence.step == 1
    assert comparison.first_divergence.op.startswith("aten::mul")


def test_extra_write_into_what_is_read_later_is_structure(tmp_path: Path) -> None:
    def function() -> Any:
        x = torch.arange(3.0)
        if in_one_run():
            x.add_(1)
        return x * 2

    assert_live(function, tmp_path, Kind.STRUCTURE, "aten::add_")


def test_extra_random_draw_that_shifts_the_others_is_structure(tmp_path: Path) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        if in_one_run():
            torch.rand(1)
        return torch.rand(3)

    assert_live(function, tmp_path, Kind.STRUCTURE, "aten::rand")


def test_extra_random_draw_after_the_last_one_that_counts_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        x = torch.rand(3)
        if in_one_run():
            torch.rand(1)
        return x

    assert_dead(function, tmp_path)


def test_extra_draw_before_the_seed_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        if in_one_run():
            torch.rand(1)
        torch.manual_seed(0)
        return torch.rand(3)

    assert_dead(function, tmp_path)


def test_detached_difference_that_flows_into_a_gradient_by_autograd_is_live(tmp_path: Path) -> None:
    def function() -> Any:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * noise(3)).sum().backward()
        optimizer.step()

    assert_live(function, tmp_path, Kind.RNG, "aten::rand")

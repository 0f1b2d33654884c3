"""Uses that make a difference live: escapes, values that a program keeps, and records that only one run has."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.types import Kind
from tests.torch_differences import assert_dead, assert_live, differing, in_one_run, noise


def keep_in_file(x: Tensor) -> None:
    torch.save({"x": x}, io.BytesIO())


def convert(x: Tensor) -> Any:
    return x.__array__()


ESCAPES: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x.sum() > 9),
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
    "index": lambda x: [0] * 9 and list(range(9))[x.sum().to(torch.int64).clamp(0, 8)],
    "memory view": lambda x: memoryview(x.numpy()),
    "copy.deepcopy and item": lambda x: copy.deepcopy(x)[0].item(),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_live(name: str, tmp_path: Path) -> None:
    def function() -> Any:
        ESCAPES[name](noise(3) * 8)

    comparison = assert_live(function, tmp_path, None)
    assert comparison.first_divergence is not None and comparison.first_divergence.op.startswith(
        ("aten::manual", "aten::rand")
    )


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_of_equal_values_are_not_a_difference(name: str, tmp_path: Path) -> None:
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
def test_values_that_a_program_keeps_are_live(what: str, tmp_path: Path) -> None:
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


def test_a_parameter_overwritten_within_a_step_is_dead(tmp_path: Path) -> None:
    def function() -> Any:
        net = Kept()
        with torch.no_grad():
            net.weight.copy_(differing(3))
            net.weight.fill_(2)
        net(torch.ones(3)).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        return net.weight

    assert_dead(function, tmp_path)


def test_a_tensor_freed_before_the_end_of_a_step_is_dead(tmp_path: Path) -> None:
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


def test_an_extra_write_to_a_tensor_that_is_read_later_is_structure(tmp_path: Path) -> None:
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


def test_an_extra_random_draw_after_the_last_relevant_one_is_dead(tmp_path: Path) -> None:
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

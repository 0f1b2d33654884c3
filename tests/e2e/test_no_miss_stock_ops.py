"""A bit that is flipped within an op of PyTorch itself is found and named, in every output and at every step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import determinism
from determinism.report.document import document
from determinism.types import Kind, Verdict
from tests.e2e.checking import VALIDATOR, line
from tests.e2e.programs import ordinary
from tests.torch_runs import tensors_in

LAST = ordinary.STEPS - 1


class Place(NamedTuple):
    """An op whose kernel is replaced by one that can flip a bit, and what a report has to name."""

    op: str
    calls_per_step: int
    call: int
    output: int
    phase: str
    module: str | None
    site: str
    forward_site: str | None = None

    @property
    def name(self) -> str:
        """For the ids of tests."""
        return f"{self.op.removeprefix('aten::')} {self.call} {self.output}"


PLACES = [
    Place("aten::stack", 1, 0, 0, "data", None, "SITE batch"),
    Place("aten::embedding", 1, 0, 0, "forward", "embed", "SITE embed"),
    Place("aten::native_layer_norm", 2, 1, 0, "forward", "blocks.1.norm", "SITE block"),
    Place("aten::native_layer_norm", 2, 1, 1, "forward", "blocks.1.norm", "SITE block"),
    Place("aten::native_layer_norm", 2, 0, 2, "forward", "blocks.0.norm", "SITE block"),
    Place("aten::addmm", 2, 1, 0, "forward", "blocks.1.mix", "SITE block"),
    Place("aten::tanh", 2, 0, 0, "forward", "blocks.0", "SITE block"),
    Place("aten::_log_softmax", 1, 0, 0, "forward", None, "SITE loss"),
    Place("aten::nll_loss_forward", 1, 0, 0, "forward", None, "SITE loss"),
    Place("aten::nll_loss_forward", 1, 0, 1, "forward", None, "SITE loss"),
    Place("aten::tanh_backward", 2, 0, 0, "backward", "blocks.1", "SITE backward", "SITE block"),
    Place("aten::native_layer_norm_backward", 2, 1, 2, "backward", "blocks.0.norm", "SITE backward", "SITE block"),
    Place("aten::embedding_dense_backward", 1, 0, 0, "backward", "embed", "SITE backward", "SITE embed"),
    Place("aten::_foreach_lerp_.Scalar", 1, 0, 3, "optimizer", None, "SITE step"),
    Place("aten::_foreach_addcdiv_.ScalarList", 1, 0, 0, "optimizer", None, "SITE step"),
]


def stock(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the op gives, by way of another one, since its own kernel is replaced."""
    aten = torch.ops.aten
    if op.startswith("aten::_foreach_"):
        targets, *others = args
        for index, target in enumerate(targets):
            others_of = [other[index] if isinstance(other, list | tuple) else other for other in others]
            target.lerp_(*others_of) if "lerp" in op else target.addcdiv_(*others_of[:2], value=others_of[2])
        return None
    name = op.removeprefix("aten::")
    other = getattr(aten, name)
    outputs = {"native_layer_norm": 3, "nll_loss_forward": 2, "native_layer_norm_backward": 3}.get(name, 1)
    made = [torch.empty(0, dtype=torch.float32) for _ in range(outputs)]
    if name == "stack":
        return torch.cat([part.unsqueeze(0) for part in args[0]])
    if name == "embedding":
        return args[0].index_select(0, args[1].reshape(-1)).view(*args[1].shape, -1)
    if name == "embedding_dense_backward":
        gradient, indices, count = args[0].flatten(0, -2), args[1].flatten(), args[2]
        return torch.zeros(count, gradient.shape[1]).index_add_(0, indices, gradient)
    if name == "tanh_backward":
        return other.grad_input(*args, grad_input=made[0])
    if name in ("native_layer_norm", "native_layer_norm_backward"):
        return other.out(*args, **{f"out{index}": tensor for index, tensor in enumerate(made)})
    if name == "nll_loss_forward":
        return other.output(*args, output=made[0], total_weight=made[1])
    return other.out(*args, **kwargs, out=made[0])


@contextmanager
def planted(place: Place, step: int | None) -> Iterator[None]:
    """Replace the op's kernel by one that flips the lowest bit of the last element at the given step."""
    calls = 0

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = stock(place.op, args, kwargs)
        if step is not None and calls == step * place.calls_per_step + place.call:
            tensor = list(tensors_in(args[0] if result is None else result))[place.output]
            tensor.view(-1)[-1:].view(torch.uint8)[0] ^= 1
        calls += 1
        return result

    library = torch.library.Library("aten", "IMPL")
    library.impl(place.op.removeprefix("aten::"), kernel, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
    assert calls == ordinary.STEPS * place.calls_per_step


def record(folder: Path, place: Place, step: int | None) -> Path:
    """Record a training; in a thread of its own, so that every trace has the same stacks."""

    def run() -> None:
        with planted(place, step), determinism.record(folder):
            ordinary.train()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
    return folder


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_stock_op(place: Place, tmp_path: Path) -> None:
    unplanted = record(tmp_path / "unplanted", place, None)
    again = determinism.compare(unplanted, record(tmp_path / "again", place, None))
    assert (again.verdict, again.dead_differences) == (Verdict.SAME, 0)
    for step in (0, 1, LAST):
        comparison = determinism.compare(unplanted, record(tmp_path / str(step), place, step))
        VALIDATOR.validate(document(comparison))
        assert comparison.recorded.blind_spots == []
        assert (comparison.verdict, comparison.dead_differences) == (Verdict.DIFFERENT, 0)
        first = comparison.first_divergence
        assert first is not None
        assert (first.kind, first.op, first.step, first.phase) == (Kind.OP, place.op, step, place.phase)
        assert first.module == place.module
        assert first.site is not None
        assert (Path(first.site.file).stem, first.site.line) == ("ordinary", line("ordinary", place.site))
        forward = None if first.forward_site is None else first.forward_site.line
        assert forward == (None if place.forward_site is None else line("ordinary", place.forward_site))
        assert len(first.outputs) == 1

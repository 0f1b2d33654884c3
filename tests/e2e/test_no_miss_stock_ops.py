"""A bit flipped inside a PyTorch op is found and located, in every output and at every step."""

from __future__ import annotations

import warnings
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
from tests.thorough import in_turns
from tests.torch_runs import tensors_in

LAST = ordinary.STEPS - 1


class Place(NamedTuple):
    """An op whose kernel is replaced by one that can flip a bit, and the location that a report must state."""

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
        """Test id."""
        return f"{self.op.removeprefix('aten::')} {self.call} {self.output}"

    @property
    def is_in_place(self) -> bool:
        """Whether the op writes its first argument."""
        return self.op.partition(".")[0].endswith("_")


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


@contextmanager
def planted(place: Place, step: int | None) -> Iterator[None]:
    """Wrap the op's kernel in one that flips the lowest bit of the last element of an output at a step."""
    calls = 0
    own = torch.library.get_kernel(place.op, "CPU")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = own.call_boxed(keys, *args, **kwargs)
        if step is not None and calls == step * place.calls_per_step + place.call:
            written = args[0] if place.is_in_place else result
            list(tensors_in(written))[place.output].view(-1)[-1:].view(torch.uint8)[0] ^= 1
        calls += 1
        return result

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(place.op.removeprefix("aten::"), kernel, "CPU", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()
    assert calls == ordinary.STEPS * place.calls_per_step


def record(folder: Path, place: Place, step: int | None) -> Path:
    """Record a training run, in a separate thread so that all traces have the same stacks."""

    def run() -> None:
        with planted(place, step), determinism.record(folder):
            ordinary.train()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
    return folder


@pytest.mark.parametrize("place", in_turns(PLACES, 5, "kinds", lambda place: place.name))
def test_a_bit_flipped_in_a_stock_op_is_located(place: Place, tmp_path: Path) -> None:
    unplanted = record(tmp_path / "unplanted", place, None)
    again = determinism.compare(unplanted, record(tmp_path / "again", place, None))
    assert (again.verdict, again.dead_differences) == (Verdict.SAME, 0)
    for step in (0, 1, LAST):
        comparison = determinism.compare(unplanted, record(tmp_path / str(step), place, step))
        VALIDATOR.validate(document(comparison))
        assert not comparison.recorded.blind_spots
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

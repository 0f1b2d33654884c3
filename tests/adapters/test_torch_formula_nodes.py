"""A recorded program keeps the derivative formulas that it has without a mode; a formula that changes is a blind spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import determinism
from determinism.comparison.result import BlindSpot
from determinism.types import Phase, Verdict
from tests.torch_runs import bits, line_of, named, only, plain, record_rows, recorded, rows, tensors_in


@pytest.fixture
def under_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record with a dispatch mode: formulas change only under one."""
    monkeypatch.setenv("DETERMINISM_RECORDER", "python")


def given(*shape: int) -> Tensor:
    """Numbers that are the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def gradients(made: Tensor, *of: Tensor, **options: Any) -> tuple[Tensor, ...]:
    upstream = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).abs()
    return torch.autograd.grad(made, of, upstream.to(made.dtype), **options)


def prod() -> Any:
    x = given(40, 30)
    return gradients(x.prod(1), x)


def cumprod_and_its_second_derivative() -> Any:
    x = given(20, 10)
    first = gradients(x.cumprod(1), x, create_graph=True)
    return first, gradients(first[0], x)


def filled_value() -> Any:
    x, value = given(3000), torch.tensor(1.0, requires_grad=True)
    return gradients(x.masked_fill(x > 0, value), x, value)


def filled_value_in_a_view() -> Any:
    x, value = given(3000), torch.tensor(1.0, requires_grad=True)
    copy = x * 1
    copy[:2000].masked_fill_(x[:2000] > 0, value)
    return gradients(copy, x, value)


def maximum_of_all() -> Any:
    x = given(5000)
    return gradients(-x.max(), x)


def error_of_a_formula() -> Any:
    x = given(5, 5)
    with pytest.raises(RuntimeError) as raised:
        gradients(torch.linalg.eig(x)[1].sum().abs(), x)
    return str(raised.value), gradients(x.prod(1), x)


def graph_that_is_kept() -> Any:
    x = given(40, 30)
    made = x.prod(1)
    return gradients(made, x, retain_graph=True), gradients(made, x)


def autocast_inside_an_op() -> Any:
    x = given(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.bilinear(x, x, given(3, 6, 6))


def conjugation_inside_an_op() -> Any:
    return torch.linalg.pinv(torch.complex(given(5, 3).detach(), given(5, 3).detach() * 2))


CHANGED = [
    prod,
    cumprod_and_its_second_derivative,
    filled_value,
    filled_value_in_a_view,
    maximum_of_all,
    autocast_inside_an_op,
    conjugation_inside_an_op,
]
PROGRAMS = [*CHANGED, error_of_a_formula, graph_that_is_kept]


def blind_spots(folder: Path) -> list[BlindSpot]:
    return list(determinism.compare(folder, folder).recorded.blind_spots)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_recorded_program_keeps_its_bits(program: Callable[[], Any], tmp_path: Path) -> None:
    assert recorded(program, tmp_path / "trace") == plain(program)
    assert blind_spots(tmp_path / "trace") == []
    assert torch._C._len_torch_dispatch_stack() == 0


class Nothing(TorchDispatchMode):
    """Runs every op unchanged."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("program", CHANGED, ids=lambda program: program.__name__)
def test_a_mode_that_does_nothing_changes_these_programs(program: Callable[[], Any]) -> None:
    with Nothing():
        under_mode = program()
    as_it_is = program()
    found, expected = ([(t.dtype, bits(t)) for t in tensors_in(made)] for made in (under_mode, as_it_is))
    if program is conjugation_inside_an_op and found == expected:
        pytest.skip("this processor's kernels give the same bits for conjugated numbers")
    assert found != expected


@pytest.mark.usefixtures("under_a_mode")
def test_a_node_is_one_record_with_all_its_possible_inputs(tmp_path: Path) -> None:
    def function() -> Any:
        x = given(40, 30)
        made = x.prod(1)
        made.exp().sum().backward()
        (x.grad * 2).sum().item()

    found = record_rows(function, tmp_path)
    node = only(found, "autograd::ProdBackward1")
    forward = only(found, "prod.dim_int")
    assert node.phase is Phase.BACKWARD
    assert node.forward == forward.number
    assert node.forward_stack[0].line == line_of(function, "x.prod(1)")
    assert node.producers[1:] == [*forward.producers, forward.number]
    assert node.producers[0] is not None and found[node.producers[0]].phase is Phase.BACKWARD
    assert node.number in named(found, "mul")[-1].producers


def test_a_difference_before_such_a_node_is_found_there(tmp_path: Path) -> None:
    def program(scale: float) -> Callable[[], Any]:
        def function() -> Any:
            x = given(40, 30)
            return gradients((x * torch.tensor([scale])).prod(1), x)

        return function

    for name, scale in (("first", 1.0), ("second", 1.0), ("third", 1.5)):
        recorded(program(scale), tmp_path / name)
    assert determinism.compare(tmp_path / "first", tmp_path / "second").verdict is Verdict.SAME
    first = determinism.compare(tmp_path / "first", tmp_path / "third").first_divergence
    assert first is not None and first.kind == "data"


@pytest.mark.usefixtures("under_a_mode")
def test_hooks_of_the_program_at_such_a_node_are_recorded(tmp_path: Path) -> None:
    def function() -> Any:
        x = given(40, 30)
        made = x.prod(1)
        made.register_hook(lambda gradient: gradient.cosh())
        made.grad_fn.register_prehook(lambda incoming: (incoming[0].sinh(),))
        made.grad_fn.register_hook(lambda outgoing, incoming: (outgoing[0].tanh(),))
        return gradients(made, x)

    assert recorded(function, tmp_path / "trace") == plain(function)
    names = [record.op for record in rows(tmp_path / "trace") if record.phase is Phase.BACKWARD]
    assert names == ["cosh", "sinh", "autograd::ProdBackward1", "tanh"]


@pytest.mark.usefixtures("under_a_mode")
def test_a_node_can_be_repeated_by_a_capture(tmp_path: Path) -> None:
    repeated: list[Tensor] = []

    class Repeating:
        def __call__(self, recorder: Any, traits: Any, func: Any, args: Any, kwargs: Any) -> None:
            if traits.name == "autograd::ProdBackward1":
                repeated.extend(func(*args, **kwargs) for _ in range(2))

        def event(self, *_: Any) -> None:
            """Ignore events: the test is about nodes."""

        def after(self, *_: Any) -> None:
            """Ignore results: nodes are captured before they run."""

    with determinism.record(tmp_path / "trace") as session:
        session.recorder.capture = Repeating()
        (made,) = prod()
    assert [bits(tensor) for tensor in repeated] == [bits(made)] * 2
    assert blind_spots(tmp_path / "trace") == []


def test_a_node_under_a_mode_of_the_program_keeps_its_formula_there(tmp_path: Path) -> None:
    def function() -> Any:
        with Nothing():
            return prod()

    assert recorded(function, tmp_path / "trace") == plain(function)
    assert blind_spots(tmp_path / "trace") == []


@pytest.mark.usefixtures("under_a_mode")
def test_formula_that_is_not_kept_is_a_blind_spot(tmp_path: Path) -> None:
    def function() -> Any:
        x = given(40, 30)
        return gradients(checkpoint(lambda x: x.prod(1).exp(), x, use_reentrant=False), x)

    recorded(function, tmp_path / "trace")
    (found,) = blind_spots(tmp_path / "trace")
    assert (found.identifier, found.what, found.count) == ("formula-changed", "backward of ProdBackward1", 1)


@pytest.mark.usefixtures("under_a_mode")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_derivative_is_a_blind_spot(tmp_path: Path) -> None:
    def function() -> Any:
        x = given(30).detach()
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, x).prod()).tangent

    recorded(function, tmp_path / "trace")
    assert [(spot.identifier, spot.what) for spot in blind_spots(tmp_path / "trace")] == [
        ("formula-changed", "forward-mode derivative of aten::prod")
    ]


def test_programs_without_such_formulas_have_no_blind_spot(tmp_path: Path) -> None:
    def function() -> Any:
        x = given(40, 30)
        weights = torch.softmax(x.masked_fill(x > 1, float("-inf")), 1)
        made = checkpoint(lambda x: x.sin(), weights, use_reentrant=False).max(1)[0].var()
        return gradients(made, x), x.detach().prod(), x.detach().max()

    assert recorded(function, tmp_path / "trace") == plain(function)
    assert blind_spots(tmp_path / "trace") == []

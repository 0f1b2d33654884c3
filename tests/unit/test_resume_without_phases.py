"""A resumed run of JAX, in which each step is one compiled program: where it diverges, and what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determinism.comparison.result import Comparison
from determinism.resume.launch import compare_resume_runs
from determinism.trace.opening import open_trace
from determinism.trace.schema import Meaning
from determinism.types import Phase, Role
from tests.traces import Ref, TraceBuilder, layout

AT, STEPS = 3, 6
NUMBER = layout(dtype="int64")
LAYOUTS = {"weight": layout(4), "momentum": layout(4), "draws": NUMBER, "updates": NUMBER}


def training(folder: Path, start: int, steps: int, lost: str = "", *, has_loss: bool = True) -> None:
    """Record a training run that counts its draws and its updates; both counts are the same number.

    Args:
        folder: The folder of the trace.
        start: The step from which the run continues.
        steps: The step at which the run ends.
        lost: The part that is not restored at `start`.
        has_loss: Whether the last step has a loss.
    """
    builder = TraceBuilder(folder)
    held: dict[str, Ref] = {}
    changed = ""
    for number in range(start, steps):
        drawn = builder.add("jax::jit(stage)", [], [f"batch {number}"], phase=Phase.OTHER)
        texts = {name: f"{number}" if layout is NUMBER else f"{name} {number}" for name, layout in LAYOUTS.items()}
        given: list[Any] = [held[name] if held else _restored(name, texts[name], lost) for name in LAYOUTS]
        changed = f", without {lost}" if lost else ""
        made = [f"{number + 1}" if one is NUMBER else f"{name} {number + 1}{changed}" for name, one in LAYOUTS.items()]
        if lost == "draws":
            made[2] = str(number - start + 1)
        step = builder.add(
            "jax::jit(step)",
            [*given, drawn],
            [*made, f"loss {number}{changed}"],
            layouts=[*LAYOUTS.values(), layout()],
            phase=Phase.OTHER,
            site=("/work/train.py", 7),
        )
        loss = Ref(step, 4, layout())
        builder.add("determinism::float", [loss], [f"loss {number}{changed}"], role=Role.ESCAPE, phase=Phase.OTHER)
        if number > start and (has_loss or number < steps - 1):
            # The program that trains is recognised when it is called with its previous results.
            record = builder.add(
                "determinism::loss", [loss], [f"loss {number}{changed}"], role=Role.LOSS, phase=Phase.OTHER
            )
            builder.number(Meaning.LOSS, number, record, producer=step)
        held = {name: Ref(step, at, view) for at, (name, view) in enumerate(LAYOUTS.items())}
        builder.step(held if number > start else {})
    builder.close()


def _restored(name: str, text: str, lost: str) -> Ref:
    """The restored value, or the initial value if this part was lost."""
    return Ref(-1, 0, LAYOUTS[name], digest=("0" if LAYOUTS[name] is NUMBER else "zeros") if name == lost else text)


def resumed(folder: Path, lost: str = "", **options: Any) -> Comparison:
    training(folder / "full", 0, STEPS)
    training(folder / "first", 0, AT)
    training(folder / "resumed", AT, STEPS, lost, **options)
    return compare_resume_runs(*(open_trace(folder / run) for run in ("full", "first", "resumed")))[0]


def test_a_loss_that_cannot_be_known_yet_is_not_a_difference(tmp_path: Path) -> None:
    comparison = resumed(tmp_path)
    assert (comparison.verdict, comparison.trouble) == ("same", ())


def test_a_loss_that_goes_missing_later_is_a_difference(tmp_path: Path) -> None:
    comparison = resumed(tmp_path, has_loss=False)
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.step == STEPS - 1


@pytest.mark.parametrize("lost", ["weight", "momentum", "draws", "updates"])
def test_the_first_differing_step_and_the_carried_tensor_are_named(lost: str, tmp_path: Path) -> None:
    comparison = resumed(tmp_path, lost)
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.step, comparison.first_divergence.op) == (AT, "jax::jit(step)")
    assert [one.identifier for one in comparison.missing or ()] == ["carried-tensor"]

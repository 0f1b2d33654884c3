"""PyTorch's own samples have the same outcome when they are recorded: values, layouts, random states, errors, warnings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain

import pytest
import torch

from determinism.audit.torch import database
from tests.thorough import in_turns
from tools.formula_audit import empty_mode, recorder
from tools.formula_cases import Case, Outcome, cases_of, differing, made_cases, observe

VARYING = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Ops that return uninitialized memory."""
FORMULAS = {
    "prod", "cumprod", "masked_fill", "max_reduction_no_dim", "min_reduction_no_dim", "median", "nanmedian", "ormqr",
    "linalg_eig", "linalg_eigh", "linalg_pinv", "pinverse", "linalg_lstsq", "nn_functional_bilinear", "masked_prod",
}  # fmt: skip
"""Ops that a mode changes; more of their samples are run."""
SLICES = 12


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """Repeat warnings: those shown once per process would appear only in the plain run."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", in_turns(range(SLICES), SLICES, "samples"))
def test_recording_does_not_disturb_the_samples(part: int) -> None:
    infos = [info for info in database() if info.formatted_name not in VARYING]
    common = (case for info in infos[part::SLICES] for case in cases_of(info, torch.float32, 1, ("backward",)))
    changed = (
        case
        for info in [info for info in infos if info.formatted_name in FORMULAS][part::SLICES]
        for dtype in (torch.float32, torch.complex64)
        for case in cases_of(info, dtype, 2, ("backward", "double backward"))
    )
    cases = list(chain(common, changed, made_cases() if part == 0 else ()))
    plain = [observe(case, nullcontext()) for case in cases]
    with recorder():
        recorded = [observe(case, nullcontext()) for case in cases]

    assert len(cases) > 40
    assert disturbed(cases, plain, recorded) == []


def test_a_mode_would_disturb_these_samples() -> None:
    (info,) = (info for info in database() if info.formatted_name == "masked_fill")
    cases = list(cases_of(info, torch.float32, 9, ("backward",)))
    plain = [observe(case, nullcontext()) for case in cases]
    under_mode = [observe(case, empty_mode()) for case in cases]

    found = disturbed(cases, plain, under_mode)
    assert found and all(aspects == ["values"] for _, aspects in found)


def disturbed(cases: list[Case], plain: list[Outcome], other: list[Outcome]) -> list[tuple[str, list[str]]]:
    """The cases with a different outcome, and the aspects that differ."""
    found = [(case.name, differing(one, two)) for case, one, two in zip(cases, plain, other, strict=True)]
    return [(name, aspects) for name, aspects in found if aspects]

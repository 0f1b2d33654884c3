"""The report on how far values differ."""

from __future__ import annotations

from typing import Any

import pytest

from determinism.comparison.divergence import Likeness
from determinism.comparison.result import Parting, ValuesApart, ValueStep
from determinism.report.document import document
from determinism.report.html import page
from determinism.types import Kind
from tests.builders import make_different, make_divergence, make_frame, make_output
from tests.rendered import text_of


def make_parting(**changes: Any) -> Parting:
    """The record of `make_divergence`, with a sample of its output."""
    sampled = make_output(repeats=None, distinct=None, elements_sampled=64, max_relative=2e-7)
    fields: dict[str, Any] = {
        "record": 1234, "step": 3, "phase": "backward", "op": "aten::mul", "module": None, "site": make_frame(41),
        "outputs": (sampled,), "looks_like": Likeness.ROUNDING,
    }  # fmt: skip
    return Parting(**{**fields, **changes})


def make_apart(**changes: Any) -> ValuesApart:
    """The values of two runs that diverge by rounding."""
    return ValuesApart(**{"kept": (64, 64), "note": "", "first": make_parting(), **changes})


def told(values: ValuesApart, **changes: Any) -> str:
    first = make_divergence(outputs=make_parting().outputs, **changes)
    return text_of(make_different(first_divergence=first, values=values))


def test_a_sample_is_labelled_as_one() -> None:
    text = told(make_apart())
    assert (
        "37 of 64 sampled elements differ, by at most 3 ulp and 1.19e-07 in value, 2e-07 of the largest element" in text
    )
    assert "looks like rounding: only the last bits differ" in text
    assert "This is evidence, not proof" in text
    assert "values diverge" not in text


@pytest.mark.parametrize(
    ("likeness", "text"),
    [(Likeness.COARSER, "looks like more than rounding"), (Likeness.OTHER, "looks like not rounding error")],
)
def test_a_difference_beyond_rounding_is_labelled_as_such(likeness: Likeness, text: str) -> None:
    assert text in told(make_apart(first=make_parting(looks_like=likeness)))


def test_values_that_diverge_elsewhere_have_their_place() -> None:
    text = told(make_apart(alone=(12, 1300)), record=7, kind=Kind.STRUCTURE)
    assert "values diverge in the records that both runs have, first in aten::mul at step 3, backward," in text
    assert "records 12 only in run 1, 1,300 only in run 2; the others were compared" in text


def test_a_sample_that_missed_the_difference_says_so() -> None:
    text = told(make_apart(), record=7)
    assert "none of the kept elements of this record differ; among later records, first in aten::mul" in text


def test_the_growth_of_differences_is_shown() -> None:
    steps = (
        ValueStep(3, 0, 0.0, 1, 1e-7, "weight"),
        ValueStep(4, 1, 1e-7, 5000, 2e-5, "bias"),
        ValueStep(5, 9, 9e-7, 40, 1e-5, "weight"),
    )
    text = told(make_apart(beyond_rounding=make_parting(step=4, op="aten::div"), steps=steps))
    assert "grows first beyond rounding in aten::div at step 4, backward" in text
    assert (
        "loss different from step 4 on, by 1 ulp, 1e-07 of its value; most at step 5, by 9 ulp, 9e-07 of its value"
        in text
    )
    assert (
        "parameters different from step 3 on, by 1 ulp, 1e-07 of the largest element of weight; most at step 4" in text
    )


def test_a_loss_that_stays_equal() -> None:
    steps = (ValueStep(3, 0, 0.0, None, None, None),)
    assert "loss equal at all steps at which values are known" in told(make_apart(steps=steps))


def test_the_reason_for_missing_sizes_is_given() -> None:
    text = told(ValuesApart((None, None), "How far is not known. Record both with --values 64."))
    assert "values How far is not known. Record both with --values 64." in text
    assert "looks like" not in text


def test_the_page_says_that_elements_are_sampled() -> None:
    first = make_divergence(outputs=make_parting().outputs)
    assert "of 64 sampled" in page(document(make_different(first_divergence=first, values=make_apart())))
    assert "sampled" not in page(document(make_different()))

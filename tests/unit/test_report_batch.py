"""The report says whether rows depend on their batch, which op causes it, and what was verified to fix it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from determinism.batch.diagnose import CureSearch, Trial, is_cured
from determinism.comparison.divergence import Diagnosis, Fix
from determinism.comparison.result import (
    BatchFindings,
    BatchKind,
    Comparison,
    Recorded,
    RowDifference,
    TrainingModule,
    Trouble,
)
from determinism.report.document import SCHEMA_FILE, document
from determinism.report.formats import plain_text
from determinism.types import Verdict
from tests.builders import make_different
from tests.rendered import text_of

VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
MODULE = TrainingModule("layers.3", "BatchNorm2d")


def same() -> Comparison:
    rows = BatchFindings((1, 16), {1: 40, 16: 40}, 40, 7, results_differ=False)
    return Comparison(Verdict.SAME, [], Recorded(), batch=rows)


def different(kind: BatchKind | None = BatchKind.OP, *, training: bool = False, absorbed: bool = False) -> Comparison:
    counts = (None, None) if kind is BatchKind.MIXING else (12, 40)
    difference = RowDifference(kind, (1, 16), *counts, training)
    rows = BatchFindings((1, 16), {1: 40, 16: 40}, 40, 7, difference, not absorbed, [MODULE] * training)
    return make_different(batch=rows)


def with_trials(comparison: Comparison, *, cured: bool) -> Comparison:
    search = CureSearch(comparison, lambda trial: same() if cured else different(BatchKind.MIXING))
    search.run()
    return search.comparison


def text_in_junit(content: dict[str, Any]) -> str:
    return " ".join(plain_text(content, details=True).split())


def test_equal_rows_are_reported_as_the_same() -> None:
    text = text_of(same())

    assert "Same: 40 rows had equal results in batches of 1 and 16, at 7 places" in text
    assert "training" not in text and "  fix " not in text


@pytest.mark.parametrize("kind", [*BatchKind, None])
def test_every_kind_is_explained_and_matches_the_schema(kind: BatchKind | None) -> None:
    comparison = different(kind)
    text = text_of(comparison)
    found = document(comparison)
    VALIDATOR.validate(found)

    assert "Different: equal rows have different results in batches of 1 and 16" in text
    assert (kind.value if kind else "not known") in text
    assert found["batch"]["difference"]["kind"] == kind
    assert found["batch"]["rows"] == [{"size": 1, "count": 40}, {"size": 16, "count": 40}]


@pytest.mark.parametrize("cured", [True, False])
def test_a_fix_is_named_only_if_it_was_verified(cured: bool) -> None:
    comparison = with_trials(different(BatchKind.MIXING, training=True), cured=cured)
    text = " ".join(text_of(comparison).split())
    found = document(comparison)
    VALIDATOR.validate(found)
    assert text_in_junit(found) == text

    assert "Modules in training mode, in which they compute differently: layers.3 (BatchNorm2d)" in text
    assert ("Verified: with it" in text) is cured
    labels = [entry["label"] for entry in found["story"] if entry["label"]]
    assert labels[: 3 if cured else 2] == ["cause", *["fix"] * cured, "kind"]
    assert ("rows still depended on their batch" in text) is not cured
    assert [fix["code"] for fix in found["fixes"]] == ["model.eval()"] * cured
    assert found["causes"][0]["status"] == ("confirmed" if cured else "likely")
    assert [one["verified"] for one in found["batch"]["tried"]] == [cured]


def test_differences_that_disappear_are_reported() -> None:
    assert "made no difference for these rows" in text_of(different(absorbed=True))


def test_an_inconclusive_verdict_says_why_and_nothing_else() -> None:
    trouble = [Trouble("batch-rows-unmatched", "No row came twice.")]
    comparison = replace(same(), verdict=Verdict.INCONCLUSIVE, trouble=trouble)
    text = text_of(comparison)

    assert "Inconclusive: No row came twice." in text and "compared" not in text


def searched(comparison: Comparison, outcomes: Callable[[Trial], Comparison | None]) -> tuple[list[str], Comparison]:
    """The fixes that are tried, in order, if trials have these outcomes, and the resulting comparison."""
    tried: list[str] = []

    def attempt(trial: Trial) -> Comparison | None:
        tried.append(trial.fix.identifier)
        return outcomes(trial)

    search = CureSearch(comparison, attempt)
    search.run()
    return tried, search.comparison


def trials_of(comparison: Comparison, outcomes: Callable[[Trial], Comparison | None]) -> list[str]:
    return searched(comparison, outcomes)[0]


def test_settings_are_tried_only_if_they_may_help() -> None:
    def nothing_helps(trial: Trial) -> Comparison:
        return different(BatchKind.MIXING)

    assert trials_of(different(BatchKind.MIXING), nothing_helps) == []
    assert trials_of(different(BatchKind.PADDING, training=True), nothing_helps) == []
    assert trials_of(different(BatchKind.RNG, training=True), nothing_helps) == ["evaluation-mode"]
    assert "one-thread" in trials_of(different(BatchKind.OP), nothing_helps)


def helps(*identifiers: str) -> Callable[[Trial], Comparison]:
    """The outcomes of trials if only these fixes help."""
    return lambda trial: same() if trial.fix.identifier in identifiers else different(BatchKind.OP)


@pytest.mark.parametrize("kind", [BatchKind.MIXING, BatchKind.OP])
def test_kernels_are_tried_in_evaluation_mode_if_the_mode_is_not_enough(kind: BatchKind) -> None:
    tried, comparison = searched(different(kind, training=True), helps("evaluation-mode-one-thread"))

    assert tried[0] == "evaluation-mode" and "evaluation-mode-one-thread" in tried
    assert [fix.code for fix in comparison.fixes] == ["model.eval()"]
    assert comparison.fixes[0].environment == (("OMP_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "1"))
    assert [(cause.identifier, cause.status) for cause in comparison.causes] == [
        ("training-mode", "confirmed"),
        ("kernel", "confirmed"),
    ]


def test_the_mode_is_not_a_cause_if_a_kernel_setting_helps_without_it() -> None:
    _, comparison = searched(different(BatchKind.OP, training=True), helps("evaluation-mode-one-thread", "one-thread"))

    assert [fix.identifier for fix in comparison.fixes] == ["one-thread"]
    assert ("kernel", "confirmed") in [(cause.identifier, cause.status) for cause in comparison.causes]
    assert ("training-mode", "confirmed") not in [(cause.identifier, cause.status) for cause in comparison.causes]


def test_kernels_are_tried_if_evaluation_mode_cannot_be() -> None:
    _, comparison = searched(
        different(BatchKind.OP, training=True),
        lambda trial: None if trial.fix.identifier == "evaluation-mode" else helps("one-thread")(trial),
    )

    assert [fix.identifier for fix in comparison.fixes] == ["one-thread"]


def test_trials_that_could_not_be_made_are_not_reported() -> None:
    _, comparison = searched(different(BatchKind.OP), lambda trial: None)

    assert comparison.batch is not None and not comparison.batch.tried


def test_runs_without_compared_rows_do_not_prove_a_cure() -> None:
    whole = same()
    assert whole.batch is not None
    empty = replace(whole, batch=replace(whole.batch, rows_matched=0))

    assert is_cured(same(), different())
    assert not is_cured(empty, different())
    assert not is_cured(different(), different())


def test_an_environment_fix_is_written_in_shell_syntax() -> None:
    fix = Fix("mkl", "One kernel", None, (("MKL_CBWR", "AVX2,STRICT"),), True)
    comparison = replace(different(), diagnosis=Diagnosis(fixes=[fix]))

    assert "MKL_CBWR=AVX2,STRICT: One kernel" in text_of(comparison)

"""The report says what a checkpoint lacks, and where it is saved."""

from __future__ import annotations

import pytest

from determinism.comparison.result import Missing, ResumeFindings
from determinism.diagnose.checkpoints import PARTS, fix
from determinism.report.document import document
from determinism.report.story import missing_entries
from tests.builders import make_comparison, make_different, make_frame

NOT_KEPT_BY_STATE = {"number", "gradients", "own-data", "training-mode", "optimizer-order"}
"""Parts that `determinism.state` does not accept as they are, or that no checkpoint holds."""


@pytest.mark.parametrize("identifier", PARTS)
def test_each_part_has_a_name_a_fix_and_a_line(identifier: str) -> None:
    comparison = make_different(resume=ResumeFindings([Missing(identifier, make_frame(), fix(identifier))]))
    texts = [entry.text for entry in missing_entries(comparison)]

    assert len(texts) == 4
    assert ("determinism.state" in texts[1]) is (identifier not in NOT_KEPT_BY_STATE)
    assert ("save" in texts[1].lower()) is (identifier != "training-mode")
    assert document(comparison)["missing"][0]["id"] == identifier


def test_an_undetermined_part_is_reported() -> None:
    comparison = make_different(resume=ResumeFindings())
    (entry,) = missing_entries(comparison)

    assert "could not be determined" in entry.text


def test_an_unknown_line_is_reported() -> None:
    comparison = make_different(resume=ResumeFindings([Missing("optimizer", None, fix("optimizer"))]))

    assert "The line that saves is not known" in [*missing_entries(comparison)][-1].text


def test_other_reports_do_not_mention_checkpoints() -> None:
    assert list(missing_entries(make_different())) == []
    assert list(missing_entries(make_comparison(resume=ResumeFindings()))) == []

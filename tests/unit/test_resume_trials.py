"""Parts that a checkpoint lacks are supplied from outside if that is possible, and only then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from determinism.comparison.divergence import Diagnosis, Visible
from determinism.comparison.result import Comparison, Missing, Recorded, ResumeFindings, Trouble
from determinism.diagnose.checkpoints import PARTS, fix
from determinism.report.document import document
from determinism.report.story import missing_entries
from determinism.resume.compare import order_of_divergence
from determinism.resume.launch import (
    MOMENTS,
    ResumeCheck,
    ResumeRequest,
    ResumeTrial,
    after_trials,
    fix_of_trial,
    fixes_of,
    generator_trials,
    whole_trials,
)
from determinism.resume.observed import ResumedProcess
from determinism.types import Verdict
from tests.builders import make_different, make_divergence, make_frame

READ = Visible(8, "value read by item()", make_frame())


def lacking(*identifiers: str) -> list[Missing]:
    return [Missing(one, make_frame(), fix(one)) for one in identifiers]


def test_generators_are_restored_at_each_moment_in_turn() -> None:
    trials = generator_trials(lacking("rng-torch", "rng-numpy"), {})

    assert [trial.generators for trial in trials] == [
        {"which": ["rng-torch", "rng-numpy"], "moment": moment} for moment in MOMENTS
    ]


@pytest.mark.parametrize(
    "identifiers",
    [(), ("own-data",), ("optimizer",), ("rng-torch", "optimizer"), ("sampler-position",), ("rng-generator",)],
)
def test_parts_that_only_the_program_can_save_are_not_tried(identifiers: tuple[str, ...]) -> None:
    assert generator_trials(lacking(*identifiers), {"main": 8}) == []


def test_without_a_loader_generators_are_restored_after_the_last_record_that_loads() -> None:
    (trial,) = generator_trials(lacking("rng-python", "own-data"), {"main": 8})

    assert trial.generators == {"which": ["rng-python"], "moment": "record", "after": {"main": 8}}


@pytest.mark.parametrize(
    ("outcomes", "left"),
    [
        ([False, True], ["rng-python"]),
        ([False, None], ["own-data"]),
        ([None], ["own-data", "rng-python"]),
        ([], ["own-data", "rng-python"]),
    ],
)
def test_trials_distinguish_a_missing_generator_from_missing_data(outcomes: list[bool | None], left: list[str]) -> None:
    data, generator = lacking("own-data", "rng-python")
    missing = [data, replace(generator, is_put_back=True)]

    assert [one.identifier for one in after_trials(missing, outcomes)] == left


@pytest.mark.parametrize("identifier", PARTS)
def test_each_part_has_lines_to_add(identifier: str) -> None:
    (found,) = fixes_of(lacking(identifier), verified=False)

    assert found.code is not None and "\n" in found.code
    assert (found.identifier, found.verified) == (identifier, False)


def test_whole_runs_are_tried_only_if_nothing_is_known_to_be_missing() -> None:
    departing = Comparison(Verdict.INCONCLUSIVE, [], Recorded(), [Trouble("resume-first-departs", "")])
    different = make_different(resume=ResumeFindings())
    lacks = make_different(resume=ResumeFindings(lacking("optimizer")))
    nothing = Comparison(Verdict.INCONCLUSIVE, [], Recorded(), [Trouble("resume-nothing-compared", "")])
    tried = [whole_trials(one, ["run", "--"]) for one in (departing, different, lacks, nothing)]

    assert [len(trials) for trials in tried] == [2, 2, 0, 0]
    assert [fix_of_trial(trial).identifier for trial in tried[0]] == ["hash-seed", "run"]
    assert dict(tried[0][0].environment) == {"PYTHONHASHSEED": "0"} and tried[0][1].prefix == ["run", "--"]


@pytest.mark.parametrize("verified", [True, False])
def test_the_report_says_verified_only_if_it_was(verified: bool) -> None:
    missing = lacking("rng-python")
    comparison = make_different(resume=ResumeFindings(missing), fixes=fixes_of(missing, verified=verified))
    texts = [entry.text for entry in missing_entries(comparison)]

    assert any(text.startswith("Verified: ") for text in texts) is verified
    assert document(comparison)["fixes"][0]["verified"] is verified


def test_a_fix_for_whole_runs_is_shown_with_an_inconclusive_verdict() -> None:
    departing = Comparison(Verdict.INCONCLUSIVE, [], Recorded(), [Trouble("resume-first-departs", "")])
    fixes = [fix_of_trial(trial) for trial in whole_trials(departing, ["run"])]
    comparison = replace(departing, resume=ResumeFindings(), diagnosis=Diagnosis(fixes=fixes))
    texts = [entry.text for entry in missing_entries(comparison)]

    assert any("PYTHONHASHSEED=0" in text for text in texts) and any(
        "determinism run --seed 1" in text for text in texts
    )


def test_an_unsuccessful_restore_is_reported() -> None:
    for missing in (lacking("rng-python"), after_trials(lacking("rng-python"), [False])):
        comparison = make_different(resume=ResumeFindings(missing))
        texts = [entry.text for entry in missing_entries(comparison)]

        is_said = any("but the resumed run was not equal" in text for text in texts)
        assert is_said is missing[0].is_tried_in_vain


@pytest.mark.parametrize("only_reads", [True, False])
def test_a_running_loss_that_is_only_logged_does_not_refute_a_fix(only_reads: bool) -> None:
    """The trial of the whole program, whose first difference was a generator, ends with only such a difference."""
    check = ResumeCheck(ResumeRequest())
    trial = ResumeTrial("generators restored")
    left = make_different(resume=ResumeFindings(only_reads_differ=only_reads), first_visible=READ)
    check._try = lambda *_: left  # type: ignore[method-assign]

    assert check._is_cured(trial, None, may_read=True) is only_reads
    assert check._still_read == (READ if only_reads else None)
    # The runs differed in no more than that before, so the trial changed nothing.
    assert check._is_cured(trial, None) is False


def test_what_is_still_read_differently_is_said() -> None:
    missing = lacking("rng-torch")
    comparison = make_different(resume=ResumeFindings(missing, still_read=READ), fixes=fixes_of(missing, verified=True))
    (text,) = (entry.text for entry in missing_entries(comparison) if entry.text.startswith("Verified: "))

    assert "everything that the resumed run trained or saved was equal" in text
    assert "first a value read by item() at " in text and ":41: a running loss" in text


def test_within_a_step_the_forward_phase_comes_first() -> None:
    """One rank drew differently; the others receive the difference with its gradients."""
    steps = [(8, "backward", "main.rank-0"), (8, "forward", "main.rank-1"), (7, "optimizer", "main.rank-2")]
    found = [
        SimpleNamespace(
            result=SimpleNamespace(divergence=make_divergence(step=step, phase=phase)), full=SimpleNamespace(key=key)
        )
        for step, phase, key in steps
    ]
    ordered = sorted(cast("list[ResumedProcess]", found), key=order_of_divergence)

    assert [process.full.key for process in ordered] == ["main.rank-2", "main.rank-1", "main.rank-0"]

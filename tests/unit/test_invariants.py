"""Values that must agree within one run, on traces written record by record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.cli.ending import invariants_report
from determinism.invariants.findings import (
    FILES,
    REPLICAS,
    InvariantFindings,
    headline,
    invariants_document,
    verdict_of,
)
from determinism.invariants.launch import check_stored
from determinism.report.document import SCHEMA_FILE, first_fault
from determinism.report.formats import junit_text
from determinism.report.html import page
from determinism.trace.schema import CALLED_OP, DIVIDED_OP, REPLICATED_OP, STEP_OP, Frame
from determinism.types import Phase, Role, Verdict
from tests.html_structure import Page
from tests.traces import Ref, TraceBuilder

LINE = ("/work/train.py", 7)


def end_step(process: TraceBuilder, weight: str, gradient: str, *, batch: str | None = None) -> None:
    """End a step with this weight and gradient."""
    if batch is not None:
        process.add("determinism::batch", (), (batch,), role=Role.BATCH)
        process.add("determinism::loss", (), (weight + batch,), role=Role.LOSS)
    made = process.add("aten::mm", (), (gradient,), phase=Phase.BACKWARD)
    new = process.add("aten::mul", (), (weight,), phase=Phase.OPTIMIZER, site=LINE)
    held = json.dumps([["parameter", "w"], ["gradient", "w"]])
    process.add(STEP_OP, (new, made), (), role=Role.STATE, phase=Phase.OTHER, site=None, arguments=held)
    process._step += 1


def findings_of(
    folder: Path,
    *ranks: list[tuple[str, str]],
    batches: list[list[str]] | None = None,
    replicated: list[int] | None = None,
) -> InvariantFindings:
    """Check a run whose ranks hold these weights and gradients after each step."""
    first = TraceBuilder(folder / "run", key="main.rank-0")
    processes = [first, *(first.beside(f"main.rank-{rank}") for rank in range(1, len(ranks)))]
    for rank, (process, steps) in enumerate(zip(processes, ranks, strict=True)):
        if replicated is not None:
            process.add(REPLICATED_OP, (), (), arguments=json.dumps({"ranks": replicated, "names": ["w"]}))
        for step, (weight, gradient) in enumerate(steps):
            end_step(process, weight, gradient, batch=None if batches is None else batches[rank][step])
    return check_stored(first.close())


EQUAL = [("w0", "g0"), ("w1", "g1"), ("w2", "g2"), ("w3", "g3")]


def parted(at: int, weight: str = "x") -> list[tuple[str, str]]:
    """The steps of a rank whose weight differs in one of them."""
    return [(weight if step == at else value, gradient) for step, (value, gradient) in enumerate(EQUAL)]


def test_equal_replicas_are_consistent(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, EQUAL, EQUAL)

    assert (findings.violations, findings.compared[REPLICAS], findings.steps) == ([], 1, 4)
    assert verdict_of(findings) is Verdict.SAME
    assert headline(findings) == "Consistent: 1 parameter equal on their ranks, 4 steps of 2 ranks"


def test_the_rank_that_differs_from_most_is_named(tmp_path: Path) -> None:
    (violation,) = findings_of(tmp_path, EQUAL, parted(2), EQUAL).violations

    assert (violation.ranks, violation.others, violation.step, violation.what) == ((1,), (0, 2), 2, "parameter w")
    assert violation.site is not None
    assert violation.site.line == 7


def test_neither_of_two_ranks_with_the_same_writes_is_accused(tmp_path: Path) -> None:
    (violation,) = findings_of(tmp_path, EQUAL, parted(3)).violations

    assert (violation.ranks, violation.others, violation.step) == ((0, 1), (0, 1), 3)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([("v0", "h0"), ("v1", "h1"), ("v2", "h2")], id="parts of a model"),
        pytest.param([("w0", "g0"), ("w1", "h1"), ("w2", "h2")], id="gradients of their own"),
    ],
)
def test_ranks_that_train_separately_are_not_replicas(other: list[tuple[str, str]], tmp_path: Path) -> None:
    findings = findings_of(tmp_path, EQUAL[:3], other)

    assert (findings.violations, findings.compared[REPLICAS], verdict_of(findings)) == ([], 0, Verdict.INCONCLUSIVE)


def test_parameters_that_differ_from_the_beginning_are_found_by_equal_gradients(tmp_path: Path) -> None:
    other = [(f"v{step}", gradient) for step, (_, gradient) in enumerate(EQUAL)]

    (violation,) = findings_of(tmp_path, EQUAL, other, EQUAL).violations

    assert (violation.what, violation.step, violation.ranks) == ("parameter w", 0, (1,))


def test_a_rank_that_has_yet_to_get_new_values_is_not_accused(tmp_path: Path) -> None:
    behind = [("v", EQUAL[0][1]), *((EQUAL[step - 1][0], EQUAL[step][1]) for step in range(1, len(EQUAL)))]

    findings = findings_of(tmp_path, EQUAL, behind)

    assert (findings.violations, findings.compared[REPLICAS]) == ([], 0)


def test_a_fault_in_the_first_step_is_found_if_the_program_declares_replicas(tmp_path: Path) -> None:
    (violation,) = findings_of(tmp_path, EQUAL, parted(0), EQUAL, replicated=[0, 1, 2]).violations

    assert (violation.what, violation.step, violation.ranks) == ("parameter w", 0, (1,))


def test_gradients_may_differ_while_they_are_accumulated(tmp_path: Path) -> None:
    other = [("w0", "h0"), ("w1", "g1"), ("w2", "h2"), ("w3", "g3")]

    findings = findings_of(tmp_path, EQUAL, other, replicated=[0, 1])

    assert (findings.violations, findings.compared[REPLICAS]) == ([], 1)


def test_equal_zero_gradients_do_not_imply_replicas(tmp_path: Path) -> None:
    still = [("w0", "zero"), ("w0", "zero")]

    findings = findings_of(tmp_path, [*still, ("a", "g")], [*still, ("b", "h")])

    assert (findings.violations, findings.compared[REPLICAS]) == ([], 0)


def test_batches_that_two_replicas_share_are_found(tmp_path: Path) -> None:
    same = [["b0", "b1", "b2", "b3"]] * 2

    (violation,) = findings_of(tmp_path, EQUAL, EQUAL, batches=same).violations

    assert (violation.invariant, violation.ranks, violation.others) == ("split-batches", (1,), (0,))


def test_one_batch_that_fills_up_an_epoch_may_be_shared(tmp_path: Path) -> None:
    batches = [["b0", "b1", "b2", "b3"], ["c0", "c1", "c2", "b3"]]

    assert findings_of(tmp_path, EQUAL, EQUAL, batches=batches).violations == []


def divided(folder: Path, batches: list[list[str]], inputs: list[list[str]], *, shared: bool) -> InvariantFindings:
    """Check a run of two ranks that hold parts of a model, with these batches and inputs of the model."""
    first = TraceBuilder(folder / "run", key="main.rank-0")
    for rank, process in enumerate((first, first.beside("main.rank-1"))):
        process.add(DIVIDED_OP, (), (), arguments=json.dumps({"ranks": [0, 1], "shared": shared}))
        for step, batch in enumerate(batches[rank]):
            process.add(CALLED_OP, (Ref(-1, digest=inputs[rank][step]),), (), arguments="grad Net")
            process.add(CALLED_OP, (Ref(-1, digest=f"evaluation on rank {rank}"),), (), arguments="no_grad Net")
            end_step(process, f"w{step} of {rank}", f"g{step} of {rank}", batch=batch)
    return check_stored(first.close())


SAME, APART = [["b0", "b1"]] * 2, [["b0", "b1"], ["b0", "c1"]]


@pytest.mark.parametrize(
    ("batches", "inputs", "shared", "expected"),
    [
        pytest.param(SAME, SAME, True, None, id="whole"),
        pytest.param(SAME, APART, True, None, id="each computes with a part"),
        pytest.param(APART, SAME, True, None, id="sent by one rank"),
        pytest.param(APART, APART, True, ("shared-batches", 1, (1,), (0,)), id="different"),
        pytest.param(APART, APART, False, None, id="split"),
        pytest.param(SAME, SAME, False, ("split-batches", 1, (1,), (0,)), id="not split"),
    ],
)
def test_ranks_with_parts_of_a_model_share_batches_or_split_them(
    batches: list[list[str]], inputs: list[list[str]], shared: bool, expected: object, tmp_path: Path
) -> None:
    violations = divided(tmp_path, batches, inputs, shared=shared).violations

    found = [(one.invariant, one.step, one.ranks, one.others) for one in violations]
    assert found == ([] if expected is None else [expected])


def test_the_document_holds_the_findings(tmp_path: Path) -> None:
    document = invariants_document(findings_of(tmp_path, EQUAL, parted(2), EQUAL))

    assert (document["format"], document["verdict"]) == ("determinism.invariants/1", "different")
    assert document["violations"][0]["names"] == ["parameter w"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_report_can_be_written_in_every_format(tmp_path: Path) -> None:
    report = invariants_report(findings_of(tmp_path, EQUAL, parted(2), EQUAL))

    assert first_fault(report, json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))) is None
    assert "parameter w of rank 1 differs from that of ranks 0 and 2 at step 2, /work/train.py:7" in report["headline"]
    assert "/work/train.py:7" in page(report)
    assert "/work/train.py:7" in junit_text(report)


def test_the_page_of_one_run_says_nothing_about_a_second_one(tmp_path: Path) -> None:
    read = Page(page(invariants_report(findings_of(tmp_path, EQUAL, parted(2), EQUAL))))

    assert "violated" in read.text
    for absent in ("Causes", "How it spread", "Losses", "Dataflow", "between the environments"):
        assert absent not in read.text


def test_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, EQUAL, parted(2), EQUAL)
    findings.violations[0] = replace(findings.violations[0], what="<script>", names=("<b>", "<i>"))

    text = page(invariants_report(findings))

    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;" in text


def test_all_violations_are_reported(tmp_path: Path) -> None:
    same = [["b0", "b1", "b2", "b3"]] * 2
    report = invariants_report(findings_of(tmp_path, EQUAL, parted(2), batches=same))

    assert report["headline"].endswith(", and 1 more violation")
    assert [entry["label"] for entry in report["story"]].count("also") == 1


@pytest.mark.parametrize(("invariant", "label"), [(FILES, "saved at"), (REPLICAS, "called at")])
def test_the_requesting_line_is_shown_with_the_line_of_the_op(invariant: str, label: str, tmp_path: Path) -> None:
    findings = findings_of(tmp_path, EQUAL, parted(2), EQUAL)
    asked = Frame("/work/train.py", 3, "main", "torch.save(model, file)")
    findings.violations[0] = replace(findings.violations[0], invariant=invariant, asked_at=asked)
    entries = {entry["label"]: entry["text"] for entry in invariants_report(findings)["story"]}
    assert entries[label] == "/work/train.py:3  torch.save(model, file)"
    assert len({"saved at", "called at"} & entries.keys()) == 1


def test_one_process_gives_no_verdict(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "run")
    end_step(builder, "w", "g")

    assert verdict_of(check_stored(builder.close())) is Verdict.INCONCLUSIVE

"""The story of the terminal report: what differs first, where, and the consequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determinism.comparison.divergence import Diagnosis, Fix, Visible
from determinism.comparison.result import BlindSpot
from determinism.report.document import document
from determinism.types import Kind
from tests.builders import (
    make_different,
    make_divergence,
    make_evidence,
    make_frame,
    make_looked_at,
    make_output,
    make_recorded,
    make_run,
    make_varied,
)
from tests.rendered import lines_of, text_of

VARIED = dict(make_varied())


def text_of_first(**changes: Any) -> str:
    return text_of(make_different(first_divergence=make_divergence(**changes)))


def test_each_kind_has_its_sentence() -> None:
    sentences = {lines_of(VARIED[kind.value])[0] for kind in Kind}
    assert len(sentences) == len(Kind)
    assert all(f"kind {kind}: " in text_of(VARIED[kind.value]) for kind in Kind)


def test_an_unknown_kind() -> None:
    first = make_divergence(kind=None, inputs_equal=None)
    assert "rerun with --level op" in text_of(make_different(first_divergence=first, level="step"))
    text = text_of(make_different(first_divergence=first))
    assert "not established" in text
    assert "--level" not in text


def test_inputs() -> None:
    unchecked = "It was not checked whether the inputs were equal; `determinism check --explain` finds out"
    text = text_of_first(inputs_equal=None)
    assert unchecked in text
    assert "from equal inputs" not in text
    assert "inputs the inputs differ" in text_of_first(inputs_equal=False)
    assert unchecked not in text_of_first(inputs_equal=None, kind=Kind.STRUCTURE)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"elements_different": None}, "524,288 elements, by at most 3 ulp"),
        ({"elements_different": 1, "elements": 1, "shape": ()}, "float32 [] on cuda:0: 1 of 1 element differs, by"),
        ({"max_ulp": None}, "elements differ, by at most 1.19e-07 in value"),
        ({"max_ulp": 1 << 24}, "elements differ, by at most 1.19e-07 in value"),
        ({"max_ulp": 1 << 24, "max_abs": None}, "elements differ, by at most 16,777,216 ulp"),
        ({"max_abs": float("nan")}, "elements differ, by at most 3 ulp the op"),
        ({"max_abs": None, "max_ulp": None}, "37 of 524,288 elements differ the op gave"),
        ({"distinct": 1, "repeats": 1}, "the op gave 1 distinct result in 1 repeat on equal inputs"),
    ],
)
def test_outputs(changes: dict[str, Any], expected: str) -> None:
    assert expected in text_of_first(outputs=(make_output(**changes),))


def test_values_of_repeats() -> None:
    text = text_of(
        make_different(first_divergence=make_divergence(outputs=(make_looked_at(),)), evidence=make_evidence())
    )
    assert "37 of 524,288 elements differ, within [3 to 7, 0 to 511], by at most 3 ulp" in text
    assert "first at [3, 0]: 0.5 in one repeat, 0.25 in another" in text
    assert "37 distinct results in 100 repeats on equal inputs; 1 with one thread; 1 at varied alignments" in text
    assert "reproducer python /home/ada/project/traces/reproducer/reproduce.py reproduces it" in text
    assert "evidence tensors of the record in /home/ada/project/traces/evidence" in text


def test_values_of_two_further_runs() -> None:
    output = make_looked_at(repeats=None, distinct=None, extent=((0, 1023), (0, 511)))
    evidence = make_evidence(source="runs", reproducer=None, folder=None, note="Too large.")
    text = text_of(make_different(first_divergence=make_divergence(outputs=(output,)), evidence=evidence))
    assert "37 of 524,288 elements differ between two further runs, by at most" in text
    assert "0.5 in one run, 0.25 in another" in text
    assert "evidence Too large" in text
    assert "reproducer" not in text


def test_repeats_that_were_not_made() -> None:
    assert "repeat" not in text_of_first(outputs=(make_output(repeats=None),))


def test_paths_below_the_current_folder_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = make_frame(file=str(tmp_path / "source" / "train.py"))
    outside = make_frame(file=str(tmp_path.parent / "other.py"))
    text = text_of_first(site=inside, forward_site=outside)
    assert "site source/train.py:41 in train_step loss.backward()" in text
    assert f"forward site {tmp_path.parent / 'other.py'}:41" in text


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "/home/ada/project/train.py:17" in text_of(make_different())


def test_a_long_path_keeps_its_end() -> None:
    text = "".join(line.strip() for line in lines_of(VARIED["long"], 80, verbose=True))
    assert "..." in text
    assert "/long/long:1 in word word" in text


def test_a_site_and_its_callers() -> None:
    stack = tuple(make_frame(line, function=f"caller_{line}") for line in range(1, 9))
    text = text_of_first(site=stack[0], stack=stack)
    assert "site /home/ada/project/train.py:1 in caller_1 loss.backward()" in text
    assert "called by /home/ada/project/train.py:2 in caller_2" in text
    assert "caller_5" in text
    assert "caller_6" not in text


def test_no_site() -> None:
    assert "No line of the program's own code is known" in text_of_first(site=None, forward_site=None)


def test_the_outermost_module_and_none() -> None:
    assert "module the outermost module" in text_of_first(module="")
    assert "module" not in text_of_first(module=None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "an operation gave different results from equal inputs at step 3, /home/ada/project/train.py:17"),
        ({"inputs_equal": None}, "an operation gave different results at step 3, /home/ada/project/train.py:17"),
        ({"kind": Kind.RNG}, "random numbers differ at step 3, /home/ada/project/train.py:17"),
        ({"kind": None}, "the runs diverge at step 3, /home/ada/project/train.py:17"),
        (
            {"forward_site": None, "op": "aten::add_.Tensor"},
            "an operation gave different results from equal inputs at step 3, add_",
        ),
    ],
)
def test_the_first_line_says_what_differs_and_where(changes: dict[str, Any], expected: str) -> None:
    comparison = make_different(first_divergence=make_divergence(**changes))
    assert lines_of(comparison)[0] == f"Different: {expected}"


def test_the_headline_names_the_op_if_nothing_counts_steps() -> None:
    first = make_divergence(op="aten::randn", step=0, phase="init", forward_site=None)
    counted, uncounted = (
        text_of(make_different(first_divergence=first, recorded=make_recorded(steps=steps, steps_by=by)))
        for steps, by in ((10, "optimizer"), (0, None))
    )
    assert "from equal inputs at step 0, randn" in counted
    assert "from equal inputs at randn" in uncounted
    assert "`determinism.step()` at the end of each iteration" in uncounted


def test_consequences() -> None:
    infected = [Visible(number, f"parameter {number}") for number in range(9)]
    text = text_of(make_different(first_visible=infected[0], infected=infected, absorbed=True))
    assert "visible first at step 0: parameter 0" in text
    assert "reached parameter 1 (step 1), parameter 2 (step 2)" in text
    assert "parameter 6 (step 6) and 2 more" in text
    assert "absorbed The difference was read and then disappeared" in text


def test_who_received_it() -> None:
    first = make_divergence(process="main.rank-1.worker-0")
    batch = {"op": "determinism::batch", "site": make_frame(9), "kind": Kind.DATA}
    hops = [
        make_divergence(process="main.rank-1", received_from="main.rank-1.worker-0", **batch),
        *(
            make_divergence(process=f"main.rank-{number}", received_from="main.rank-1", step=4)
            for number in range(2, 7)
        ),
    ]
    text = text_of(make_different(first_divergence=first, divergences=hops, recorded=make_recorded(processes=8)))
    assert (
        "received process main.rank-1 received it from process main.rank-1.worker-0, in determinism::batch at "
        "/home/ada/project/train.py:9 (step 3)"
    ) in text
    assert "process main.rank-2 received it from process main.rank-1, in" in text
    assert "and so did 3 more" in text
    assert "too" not in text.partition("received")[2]


def test_a_thread() -> None:
    first = make_divergence(thread="loader", stream="main.threads", inputs_equal=None)
    hop = make_divergence(received_from="main", op="aten::clone")
    text = text_of(make_different(first_divergence=first, divergences=[hop]))
    assert "where step 3, backward, thread loader" in text
    assert "process main received it from another thread, in aten::clone" in text
    assert "--explain" not in text


def test_a_difference_that_only_reached_values_that_the_program_reads() -> None:
    kept = "nothing that was trained and no saved tensor differs"
    read = Visible(3, "value read by item()", make_frame(30))
    only = {"first_visible": read, "infected": [read]}

    def short(**changes: Any) -> str:
        return " ".join(" ".join(lines_of(make_different(**{**only, **changes}))).split())

    assert f"reached value read by item() at step 3; {kept}" in short()
    unread = Visible(3, "result that the program may read (no other op used it)")
    assert kept in short(first_visible=unread, infected=[unread])
    assert "visible first at step 3: value read by item() at /home/ada/project/train.py:30" in text_of(
        make_different(**only)
    )
    for what in ("parameter weight", "gradient weight", "loss", "saved tensor"):
        assert kept not in short(infected=[read, Visible(4, what)])
    # Without an optimizer, what is trained is unknown; likewise if something was not recorded, received or compared.
    assert kept not in short(recorded=make_recorded(steps_by=None))
    assert kept not in short(recorded=make_recorded(steps_by="batches"))
    assert kept not in short(recorded=make_recorded(blind_spots=[BlindSpot("subprocess", "a process", "", 1)]))
    assert kept not in short(divergences=[make_divergence(received_from="main")])
    assert kept not in short(first_divergence=make_divergence(kind=Kind.STRUCTURE))
    assert kept not in short(runs=[make_run(1), make_run(2, stopped_by="steps")])
    assert kept not in short(ran_on=[("package jax", "0.5")])


@pytest.mark.parametrize(("what", "is_apart"), [("value read by item()", True), ("parameter weight", False)])
def test_measured_times_that_are_only_read_are_not_said_to_decide_anything(what: str, is_apart: bool) -> None:
    fix = Fix("clock", "Decide by a count of steps instead of by time, at train.py:30")
    fixes = document(make_different(infected=[Visible(3, what)], diagnosis=Diagnosis(fixes=(fix,))))["fixes"]
    assert fixes[0]["title"].startswith("Keep measured times out of tensors" if is_apart else "Decide by a count")
    assert ", at train.py:30" in fixes[0]["title"]


def test_differences_after_the_last_step_have_no_step_number() -> None:
    def lines(step: int, **changes: Any) -> str:
        read = Visible(step, "value read by item()", make_frame(30))
        changed = {name: changes.pop(name) for name in ("kind", "phase") if name in changes}
        first = make_divergence(**{"step": step, "kind": Kind.DATA, "phase": "other", **changed})
        fields = {"first_divergence": first, "first_visible": read, "infected": [read], **changes}
        return " ".join(" ".join(lines_of(make_different(**fields))).split())

    # Ten steps, 0 to 9.
    after = lines(10)
    assert after.startswith("Different: a value from outside the framework differs after the last step, /home/ada")
    assert "first difference after the last step" in after
    assert "reached value read by item() after the last step" in after
    assert "step 10" not in after
    assert "at step 9," in lines(9)
    # This step may exist if a run was cut short or took a different path, or if there are several processes.
    assert "at step 10," in lines(10, kind=Kind.STRUCTURE)
    assert "at step 10," in lines(10, phase="forward")
    assert "loss at step 10" in lines(10, infected=[Visible(10, "loss")])
    assert "at step 10," in lines(10, recorded=make_recorded(processes=2))
    assert "at step 10," in lines(10, recorded=make_recorded(steps_by="batches"))
    assert "at step 10," in lines(10, runs=[make_run(1), make_run(2, exit_status=1)])
    assert "at step 10," in lines(10, runs=[make_run(1, stopped_by="steps"), make_run(2)])

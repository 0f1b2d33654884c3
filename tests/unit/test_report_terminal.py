"""The terminal report: the verdict first, few lines, and no control characters."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from determinism.comparison.divergence import Cause, Fix, Status
from determinism.comparison.result import BlindSpot, Missing, Recorded, ResumeFindings
from determinism.report.document import document
from determinism.report.terminal import render
from tests.builders import (
    WEIRD,
    make_comparison,
    make_crowded,
    make_different,
    make_divergence,
    make_frame,
    make_inconclusive,
    make_recorded,
    make_run,
    make_varied,
)
from tests.rendered import lines_of, text_of

VARIED = dict(make_varied())
WIDTHS = [40, 80, 120, 250]
PLACE = re.compile(r"\.\w+:\d")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIED)
def test_every_report_is_short_and_begins_with_the_verdict(name: str, width: int) -> None:
    lines = lines_of(VARIED[name], width)
    assert 1 <= len(lines) <= 60
    assert lines[0].startswith(VARIED[name].verdict.capitalize())
    whole = [line for line in lines if not PLACE.search(line)]
    assert all(cell_len(line) <= min(width, 120) for line in whole)
    assert lines[-1].strip()
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIED)
def test_no_control_character_reaches_the_terminal(name: str, width: int) -> None:
    assert all(line.isprintable() for line in lines_of(VARIED[name], width, verbose=True))


def test_foreign_strings_are_shown_as_they_are() -> None:
    text = text_of(
        make_different(first_divergence=make_divergence(op=WEIRD, detail="[red]detail[/red] :smile:\nsecond line"))
    )
    assert r"\x1b[31mred\x1b[0m [bold]x[/bold] \udce9 a\nb\r\x07\u202e :smile: \x9b2J" in text
    assert "[red]detail[/red] :smile: second line" in text


def test_a_place_is_not_split_on_a_narrow_terminal() -> None:
    folder = "/home/ada/" + "a-folder-with-a-long-name/" * 4
    lines = lines_of(
        make_different(first_divergence=make_divergence(site=make_frame(17, file=f"{folder}train.py"))),
        60,
        verbose=True,
    )
    assert any(f"{folder}train.py:17" in line for line in lines)
    assert all(cell_len(line) <= 60 for line in lines if folder not in line)


def test_colour_is_only_for_terminals() -> None:
    assert (
        lines_of(make_different())[0]
        == "Different: an operation gave different results from equal inputs at step 3, /home/ada/project/train.py:17"
    )
    coloured = lines_of(make_crowded(WEIRD), force_terminal=True, color_system="standard", no_color=False)
    assert coloured[0].startswith("\x1b[1;31mDifferent: ")
    # Only the report's own styles are escape sequences: those in foreign strings remain text.
    assert "\x1b[31mred" not in "".join(coloured)


def test_an_output_that_cannot_hold_every_character() -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii")
    content = document(make_different(first_divergence=make_divergence(module="café")))
    render(content, Console(file=file, width=80), verbose=True)
    file.flush()
    assert rb"caf\xe9" in buffer.getvalue()


def test_same() -> None:
    lines = lines_of(make_comparison(runs=[make_run(trace=None), make_run(trace=None)]))
    assert lines == ["Same: 2 runs, 10 steps, 1,234 records, every tensor bit-identical"]


def test_same_counts_one() -> None:
    recorded = make_recorded(records=1, steps=1)
    assert (
        lines_of(make_comparison(recorded=recorded))[0] == "Same: 2 runs, 1 step, 1 record, every tensor bit-identical"
    )


def test_same_with_blind_spots_lists_them() -> None:
    spots = [BlindSpot("a", "region `f`", "its kernels are fused", 1), BlindSpot("b", "thread `t`", "too early", 12)]
    lines = lines_of(make_comparison(recorded=make_recorded(blind_spots=spots)))
    assert lines == [
        "Same: 2 runs, 10 steps, 1,234 records, every recorded tensor bit-identical",
        "",
        "  blind spots       thread `t`, 12 times: too early",
        "                    region `f`, once: its kernels are fused",
    ]


def test_differences_that_nothing_read_are_not_called_equal() -> None:
    assert "every tensor that was read bit-identical" in lines_of(make_comparison(dead_differences=3))[0]


def test_different_without_a_cause() -> None:
    assert lines_of(make_different(), 80) == [
        "Different: an operation gave different results from equal inputs at step 3,",
        "/home/ada/project/train.py:17",
        "",
        "  /home/ada/project/train.py:17  x = self.embedding(tokens)",
        "  first difference  step 3 (float32 [1024, 512], 37 of 524,288 elements, at most",
        "                    3 ulp)",
        "  reached           gradients at step 3; loss at step 4",
        "  details           the same command with -v",
    ]


def test_every_detail() -> None:
    lines = lines_of(make_different(), 80, verbose=True)
    assert lines[:7] == lines_of(make_different(), 80)[:-1]
    assert lines[7:] == [
        "",
        "  kind              op: the op itself gave different outputs from equal inputs",
        "                    and arguments",
        "  op                aten.embedding_dense_backward.default",
        "  module            encoder.embedding",
        "  where             step 3, backward",
        "  forward site      /home/ada/project/train.py:17 in forward",
        "                        x = self.embedding(tokens)",
        "  called by         /home/ada/project/train.py:41 in train_step",
        "                    /home/ada/project/train.py:63 in main",
        "  detail            Output 0 has digest 5a8a768a in run 1 and 472eedad in run 2.",
        "  inputs            equal in both runs",
        "  output            float32 [1024, 512] on cuda:0: 37 of 524,288 elements",
        "                    differ, by at most 3 ulp and 1.19e-07 in value",
        "                    the op gave 37 distinct results in 100 repeats on equal",
        "                    inputs",
        "  visible           first at step 4: loss",
        "  reached           gradient encoder.embedding.weight (step 3)",
        "  traces            run-1 and run-2 in",
        "                    /home/ada/project/.determinism/2026-01-05T10-20-30",
    ]


def test_a_diff_is_never_folded() -> None:
    fix = Fix("hash-value", "Sort", "x", None, True, 3, None, "+" + "word " * 30)
    cause = Cause("hash-value", "The result depends on a hash", Status.CONFIRMED, (), (), ())
    lines = lines_of(make_different(causes=[cause], fixes=[fix]), 60)
    assert f"      +{'word ' * 30}".rstrip() in lines


def test_inconclusive() -> None:
    assert lines_of(make_inconclusive("Both runs\nended."))[0] == "Inconclusive: Both runs ended."
    several = lines_of(make_inconclusive("One reason.", "Another."))
    assert several[0] == "Inconclusive, for 2 reasons"
    assert several[2:4] == ["  trouble           One reason.", "                    Another."]
    nothing = make_inconclusive(runs=[], recorded=Recorded())
    assert lines_of(nothing) == ["Inconclusive: nothing was compared"]


def test_a_message_that_is_too_long_is_cut() -> None:
    lines = lines_of(make_inconclusive("word " * 10_000), 80)
    assert lines[5].endswith("...")
    assert all(line.startswith(("Inconclusive: word", "word")) for line in lines[:6])


def test_a_message_is_cut_between_words() -> None:
    words = [f"word-{number:04}" for number in range(1000)]
    lines = lines_of(make_inconclusive(" ".join(words)), 76)

    assert lines[5].endswith("...")
    assert set(" ".join(lines[:6]).removeprefix("Inconclusive: ").removesuffix("...").split()) < set(words)


@pytest.mark.parametrize("width", [40, 80])
def test_advice_about_a_checkpoint_is_shown_as_a_whole(width: int) -> None:
    advice = " ".join(f"word-{number:04}" for number in range(100))
    missing = [Missing("rng-torch", make_frame(), advice)]
    text = " ".join(line.strip() for line in lines_of(make_different(resume=ResumeFindings(missing)), width))

    assert advice in text

"""The terminal report: the verdict first, at most 40 lines, and nothing in it that a terminal would obey."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from determinism.comparison.result import BlindSpot, Recorded
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
LEFT_OUT = "more lines were left out; --json FILE has the full lists."


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIED)
def test_every_report_is_short_and_begins_with_the_verdict(name: str, width: int) -> None:
    lines = lines_of(VARIED[name], width)
    assert 1 <= len(lines) <= 40
    assert lines[0].startswith(VARIED[name].verdict.capitalize())
    whole = [line for line in lines if not line.endswith(LEFT_OUT) and not PLACE.search(line)]
    assert all(cell_len(line) <= min(width, 120) for line in whole)
    assert lines[-1].strip()
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIED)
def test_nothing_reaches_the_terminal_that_it_would_obey(name: str, width: int) -> None:
    assert all(line.isprintable() for line in lines_of(VARIED[name], width))


def test_foreign_strings_are_shown_as_they_are() -> None:
    text = text_of(
        make_different(first_divergence=make_divergence(op=WEIRD, detail="[red]detail[/red] :smile:\nsecond line"))
    )
    assert r"\x1b[31mred\x1b[0m [bold]x[/bold] \udce9 a\nb\r\x07\u202e :smile: \x9b2J" in text
    assert "[red]detail[/red] :smile: second line" in text


def test_a_place_stands_in_one_piece_however_narrow_the_terminal_is() -> None:
    folder = "/home/ada/" + "a-folder-with-a-long-name/" * 4
    lines = lines_of(
        make_different(first_divergence=make_divergence(site=make_frame(17, file=f"{folder}train.py"))), 60
    )
    assert any(f"{folder}train.py:17" in line for line in lines)
    assert all(cell_len(line) <= 60 for line in lines if folder not in line)


def test_colour_is_only_for_terminals() -> None:
    assert lines_of(make_different())[0] == "Different: run 2 departs from run 1 at step 3, in the backward pass"
    coloured = lines_of(make_crowded(WEIRD), force_terminal=True, color_system="standard", no_color=False)
    assert coloured[0].startswith("\x1b[1;31mDifferent: ")
    # Only the report's own styles are sequences: those of the foreign strings stay text.
    assert "\x1b[31mred" not in "".join(coloured)


def test_an_output_that_cannot_hold_every_character() -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii")
    render(make_different(first_divergence=make_divergence(module="café")), Console(file=file, width=80))
    file.flush()
    assert rb"caf\xe9" in buffer.getvalue()


def test_same() -> None:
    lines = lines_of(make_comparison(runs=[make_run(trace=None), make_run(trace=None)]))
    assert lines == ["Same: 1,234 records in 10 steps were bit-identical in 2 runs"]


def test_same_counts_one() -> None:
    recorded = make_recorded(records=1, steps=1)
    assert lines_of(make_comparison(recorded=recorded))[0] == "Same: 1 record in 1 step was bit-identical in 2 runs"


def test_same_with_blind_spots_says_so_in_its_second_line() -> None:
    spots = [BlindSpot("a", "region `f`", "its kernels are fused", 1), BlindSpot("b", "thread `t`", "too early", 12)]
    lines = lines_of(make_comparison(recorded=make_recorded(blind_spots=spots)))
    assert lines[1] == "The verdict covers only what was recorded; there are 2 blind spots."
    assert lines[3:5] == [
        "  blind spots   thread `t`, 12 times: too early",
        "                region `f`, once: its kernels are fused",
    ]


def test_different() -> None:
    assert lines_of(make_different(), 80) == [
        "Different: run 2 departs from run 1 at step 3, in the backward pass",
        "",
        "  kind          op: the op itself gave different outputs from equal inputs and",
        "                arguments",
        "  op            aten.embedding_dense_backward.default",
        "  module        encoder.embedding",
        "  where         step 3, backward",
        "  forward site  /home/ada/project/train.py:17 in forward",
        "                    x = self.embedding(tokens)",
        "  called by     /home/ada/project/train.py:41 in train_step",
        "                /home/ada/project/train.py:63 in main",
        "  detail        Output 0 has digest 5a8a768a in run 1 and 472eedad in run 2.",
        "  inputs        equal in both runs",
        "  output        float32 [1024, 512] on cuda:0: 37 of 524,288 elements differ, by",
        "                at most 3 ulp and 1.19e-07 in value",
        "                the op gave 37 distinct results in 100 repeats on equal inputs",
        "",
        "  visible       first at step 4: loss",
        "  reached       gradient encoder.embedding.weight (step 3)",
        "",
        "  traces        run-1 and run-2 in",
        "                /home/ada/project/.determinism/2026-01-05T10-20-30",
    ]


def test_inconclusive() -> None:
    assert lines_of(make_inconclusive("Both runs\nended."))[0] == "Inconclusive: Both runs ended."
    several = lines_of(make_inconclusive("One reason.", "Another."))
    assert several[0] == "Inconclusive, for 2 reasons"
    assert several[2:4] == ["  trouble       One reason.", "                Another."]
    nothing = make_inconclusive(runs=[], recorded=Recorded())
    assert lines_of(nothing) == ["Inconclusive: the runs could not be compared"]


def test_what_is_left_out_is_counted() -> None:
    lines = lines_of(make_crowded(), 80)
    assert 36 <= len(lines) <= 40
    assert lines[-1].endswith(LEFT_OUT)
    assert any("blind spots" in line for line in lines)
    assert "left out" not in text_of(make_different())


def test_a_message_that_is_too_long_is_cut() -> None:
    lines = lines_of(make_inconclusive("word " * 10_000), 80)
    assert lines[4].endswith("...")
    assert all(line.startswith(("Inconclusive: word", "word")) for line in lines[:5])

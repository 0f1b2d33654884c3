"""What the terminal says of causes and fixes."""

from __future__ import annotations

from determinism.comparison.result import Cause, Comparison, Experiment, Fix, Recorded, Status
from determinism.report.entries import Tone
from determinism.report.story import cause_entries
from determinism.trace.names import Frame
from determinism.types import Verdict


def comparison(*fixes: Fix) -> Comparison:
    experiment = Experiment("line read.py:2", "fixed", 3, True, "All 3 runs were bit-identical.")
    site = Frame("/p/read.py", 2, "main", "value = hash(name)")
    cause = Cause("hash-value", "A hash decides", Status.CONFIRMED, ("Why.",), (experiment,), (site,))
    return Comparison(Verdict.DIFFERENT, [], Recorded(), causes=[cause], fixes=list(fixes))


def test_cause_stands_with_its_line_and_what_shows_it() -> None:
    texts = [entry.text for entry in cause_entries(comparison())]
    assert texts[0] == "A hash decides (hash-value, confirmed)"
    assert "value = hash(name)" in texts
    assert texts[-1] == "line read.py:2 fixed: All 3 runs were bit-identical."


def test_each_line_of_a_fix_is_a_line() -> None:
    code = "import zlib\nvalue = zlib.crc32(repr(name).encode())"
    entries = list(cause_entries(comparison(Fix("hash-value", "Use another hash", code, None, True, 3, 1.0))))
    assert [entry.text for entry in entries if entry.tone is Tone.CODE][1:] == code.splitlines()
    [title] = [entry.text for entry in entries if entry.label == "fix"]
    assert title == "Use another hash (verified: 3 runs were bit-identical, a step takes 1.00 times as long)"


def test_fix_without_equal_runs_is_not_verified() -> None:
    entries = cause_entries(comparison(Fix("hash-value", "Use another hash")))
    assert [entry.text for entry in entries if entry.label == "fix"] == ["Use another hash (not verified)"]

"""Leftovers in the report: prominent with a remedy where the runs differ, a note where they agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.comparison.result import Leftover
from tests.builders import make_comparison, make_different
from tests.rendered import lines_of, text_of


def left(*names: str, is_copied: bool = True) -> list[Leftover]:
    """Files in the working directory."""
    return [Leftover(str(Path.cwd() / name), 1, 2, is_copied) for name in names]


def test_differing_runs_are_told_what_to_do_first() -> None:
    lines = lines_of(make_different(leftovers=left("last.pt")))
    assert lines[2].startswith("  leftovers     The runs did not start alike: run 2 read last.pt")
    assert "To let them start alike: --before 'rm -f last.pt', or --fresh-copy." in " ".join(lines)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a b.pt"], "--before 'rm -f '\"'\"'a b.pt'\"'\"''"),
        (["a", "b"], "run 2 read a and b, which run 1 had left: they were changed"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more files"),
        (["a", "b", "c", "d"], "--before 'rm -f a b c ...'"),
    ],
)
def test_files_are_named(names: list[str], said: str) -> None:
    assert said in text_of(make_different(leftovers=left(*names)))


def test_copy_is_no_remedy_for_files_elsewhere() -> None:
    assert "--fresh-copy" not in text_of(make_different(leftovers=left("x", is_copied=False)))


def test_equal_runs_get_a_note() -> None:
    text = text_of(make_comparison(leftovers=left("cache.json")))
    assert "leftovers run 2 read cache.json, which run 1 had left" in text
    assert "--before" not in text


def test_without_leftovers_nothing_is_said() -> None:
    assert "leftovers" not in text_of(make_different()) + text_of(make_comparison())

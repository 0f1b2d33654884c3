"""The reports on stored traces of real programs, byte by byte; `make golden` rewrites them after an intended change."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from tests.golden.cases import CASES, Case
from tests.golden.corpus import ARCHIVE, FOLDER, folder_of, reports_of, stored_reports

MOST_BYTES = 6 << 20
_LINES_SHOWN = 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reports_are_unchanged(case: Case, tmp_path: Path) -> None:
    expected = stored_reports(case)
    made = reports_of(case, tmp_path)
    assert made.keys() == expected.keys(), case.name
    changed = [name for name in made if made[name] != expected[name]]
    if changed:
        # The shortest report is the most informative.
        name = min(changed, key=lambda name: len(made[name]))
        lines = difflib.unified_diff(
            expected[name].splitlines(), made[name].splitlines(), "stored", "now", n=1, lineterm=""
        )
        shown = "\n".join([line[:200] for line in lines][:_LINES_SHOWN])
        pytest.fail(
            f"Reports on {case.name} changed ({', '.join(changed)}). If that was meant: make golden, and look at the "
            f"difference. Of {name}:\n{shown}",
            pytrace=False,
        )


def test_every_case_is_stored_and_nothing_else() -> None:
    stored = {path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("report.json")}
    assert stored == {case.name for case in CASES}


def test_cases_have_unique_names() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_verdicts_are_the_expected_ones() -> None:
    """A program whose runs happened to be equal would show nothing."""
    for case in CASES:
        if case.damage is None:
            text = (folder_of(case) / "report.json").read_text(encoding="utf-8")
            verdict = re.search(r'"verdict": "(\w+)"', text)
            assert verdict is not None and verdict[1] == case.verdict, case.name


def test_the_corpus_is_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert any(path.name == ARCHIVE for path in files)

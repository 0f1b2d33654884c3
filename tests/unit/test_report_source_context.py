"""The lines around a place: shown only for source code, and only if the file still contains what ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from determinism.report.document import LONGEST_LINE, contexts, document
from determinism.trace.schema import Frame
from tests.builders import make_different, make_divergence

LINES = [f"x{number} = {number}" for number in range(1, 21)]


def written(folder: Path, text: str = "\n".join(LINES), name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def frame(path: Path, line: int, code: str | None = None) -> Frame:
    return Frame(str(path), line, "main", LINES[line - 1] if code is None else code)


@pytest.mark.parametrize(("line", "first", "count"), [(10, 6, 9), (1, 1, 5), (2, 1, 6), (20, 16, 5)])
def test_the_lines_around_a_place_are_shown(line: int, first: int, count: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    [found] = contexts([frame(path, line)])
    assert found == {"file": str(path), "line": line, "first": first, "lines": LINES[first - 1 : first - 1 + count]}


def test_a_place_is_shown_once(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = contexts([frame(path, 3), None, frame(path, 3), frame(path, 4)])
    assert [one["line"] for one in found] == [3, 4]


def test_a_file_that_has_changed_since_is_not_shown(tmp_path: Path) -> None:
    assert contexts([frame(written(tmp_path), 3, "x3 = 4")]) == []


@pytest.mark.parametrize(("line", "code"), [(0, "x1 = 1"), (-1, "x20 = 20"), (21, ""), (3, ""), (10**9, "x")])
def test_missing_lines_are_not_shown(line: int, code: str, tmp_path: Path) -> None:
    assert contexts([Frame(str(written(tmp_path)), line, "main", code)]) == []


@pytest.mark.parametrize("name", ["passwd", "secrets.env", "train.py.bak"])
def test_a_file_that_is_not_source_code_is_not_shown(name: str, tmp_path: Path) -> None:
    assert contexts([frame(written(tmp_path, name=name), 3)]) == []


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "bytes.py").write_bytes(b"x1 = 1\n\xff\xfe\n")
    os.mkfifo(tmp_path / "pipe.py")
    names = ["folder.py", "bytes.py", "pipe.py", "nowhere.py", "null\0byte.py", "cafe\udce9.py"]
    assert contexts([Frame(str(tmp_path / name), 1, "main", "x1 = 1") for name in names]) == []


def test_a_file_is_read_in_its_declared_encoding(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    [found] = contexts([Frame(str(path), 2, "main", "name = 'é'")])
    assert found["lines"][1] == "name = 'é'"


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a = '\x0c'\nb = '\u2028'\nc = 3\n")
    [found] = contexts([Frame(str(path), 3, "main", "c = 3")])
    assert found["lines"][2] == "c = 3"


def test_very_long_lines_are_cut(tmp_path: Path) -> None:
    path = written(tmp_path, "a = 1\nb = '" + "x" * 10_000 + "'\n")
    [found] = contexts([Frame(str(path), 1, "main", "a = 1")])
    assert len(found["lines"][1]) == LONGEST_LINE


def test_the_document_quotes_its_places(tmp_path: Path) -> None:
    path = written(tmp_path)
    changes: dict[str, Any] = {"site": frame(path, 3), "forward_site": frame(path, 9), "stack": (frame(path, 3),)}
    found = document(make_different(first_divergence=make_divergence(**changes)))
    assert [one["line"] for one in found["sources"]] == [3, 9]

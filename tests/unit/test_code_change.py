"""A change to a program is made to its text in memory, or not at all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from determinism.probes.loading import Loading, Unchangeable, changed_tree
from determinism.run_spec import ChangedLines, CodeChange

TEXT = b'''"""Reads."""

from __future__ import annotations
import os
for name in os.listdir("."):
    print(name)  # \xc3\xa9\xc3\xa9n
'''
SORTED = CodeChange(
    "/p/read.py", (ChangedLines(5, 5, 'for name in os.listdir("."):', 'for name in sorted(os.listdir(".")):'),)
)


def printed(source: bytes, *changes: CodeChange) -> list[str]:
    return ast.unparse(changed_tree(source, "/p/read.py", changes)).splitlines()


def test_a_line_is_replaced_and_all_others_stay() -> None:
    tree = changed_tree(TEXT, "/p/read.py", [SORTED])
    assert "for name in sorted(os.listdir('.')):" in ast.unparse(tree)
    assert [(type(one).__name__, one.lineno) for one in tree.body] == [
        (type(one).__name__, one.lineno) for one in ast.parse(TEXT).body
    ]


def test_line_breaks_of_another_system_are_accepted() -> None:
    windows = TEXT.replace(b"\n", b"\r\n")
    assert printed(windows, SORTED) == printed(TEXT, SORTED)


def test_imports_come_before_the_program_and_take_no_line() -> None:
    change = CodeChange(SORTED.file, SORTED.changes, ("import zlib", "import json"))
    tree = changed_tree(TEXT, "/p/read.py", [change, change])
    assert [ast.unparse(one) for one in tree.body[2:5]] == ["import zlib", "import json", "import os"]
    assert [one.lineno for one in tree.body[2:5]] == [4, 4, 4]
    compile(tree, "read.py", "exec")


def test_a_line_may_become_several() -> None:
    change = CodeChange(
        SORTED.file, (ChangedLines(6, 6, "    print(name)  # één", "    name = name\n    print(name)"),)
    )
    assert printed(TEXT, change, SORTED)[-2:] == ["    name = name", "    print(name)"]


def test_text_that_does_not_match_is_not_changed() -> None:
    with pytest.raises(Unchangeable, match="line 5"):
        changed_tree(TEXT.replace(b"listdir", b"scandir"), "/p/read.py", [SORTED])


def test_two_changes_of_one_line_are_not_made() -> None:
    other = CodeChange(SORTED.file, (ChangedLines(5, 5, 'for name in os.listdir("."):', "for name in ():"),))
    with pytest.raises(Unchangeable, match="line 5"):
        changed_tree(TEXT, "/p/read.py", [SORTED, other])


def test_only_the_changed_file_runs_from_changed_code(tmp_path: Path) -> None:
    file = tmp_path / "read.py"
    file.write_bytes(TEXT)
    (tmp_path / "other.py").write_bytes(TEXT)
    change = CodeChange(str(file), SORTED.changes)
    loading = Loading(frozenset(), lambda *_: None, rewrites=False, changes=(change,))
    code = loading.code_of("read", str(file))
    assert code is not None and "sorted" in code.co_names
    assert not [name for name in code.co_names if "determinism" in name]
    assert loading.code_of("other", str(tmp_path / "other.py")) is None

"""Rules that every file of the package follows: size, names, docstrings, and no trace of the machine it was made on."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import determinism

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "determinism"
FILES = sorted(PACKAGE.rglob("*.py"))
NATIVE_FILES = sorted(path for pattern in ("*.c", "*.cpp", "*.h") for path in PACKAGE.rglob(pattern))

MOST_FILE_LINES = 800
MOST_FUNCTION_LINES = 60
LONG_FILES: dict[str, str] = {}
"""Files that may be longer, each with the reason."""
LONG_FUNCTIONS: dict[str, str] = {}
"""Functions that may be longer, each with the reason."""

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}
"""Names of modules that could contain anything."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in a file, including nested ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name_of(path: Path) -> str:
    """The path of a file within the package."""
    return path.relative_to(PACKAGE).as_posix()


def long_files() -> set[str]:
    """Files with too many lines."""
    return {name_of(path) for path in [*FILES, *NATIVE_FILES] if len(path.read_text().splitlines()) > MOST_FILE_LINES}


def long_functions() -> set[str]:
    """Functions with too many lines."""
    return {
        f"{name_of(path)}:{function.name}"
        for path in FILES
        for function in functions(ast.parse(path.read_text()))
        if (function.end_lineno or 0) - function.lineno >= MOST_FUNCTION_LINES
    }


def test_there_are_files() -> None:
    assert len(FILES) > 50
    assert len(NATIVE_FILES) > 5


def test_no_file_is_too_long() -> None:
    assert long_files() == set(LONG_FILES)


def test_no_function_is_too_long() -> None:
    assert long_functions() == set(LONG_FUNCTIONS)


def test_no_file_has_a_catch_all_name() -> None:
    assert [name_of(path) for path in FILES if {*Path(name_of(path)).with_suffix("").parts} & DRAWERS] == []


def test_every_file_has_a_docstring() -> None:
    assert [name_of(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def statements(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Every block of statements, with its parent node."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield node, block


def test_every_docstring_describes_something() -> None:
    alone = []
    for path in FILES:
        for node, block in statements(ast.parse(path.read_text())):
            for before, statement in zip([None, *block], block, strict=False):
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                    continue
                begins = before is None and isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                )
                if (
                    statement.value.value is not ...
                    and not begins
                    and not isinstance(before, ast.Assign | ast.AnnAssign)
                ):
                    alone.append(f"{name_of(path)}:{statement.lineno}")
    assert alone == []


@pytest.mark.parametrize("name", determinism.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(determinism, name)
    text = inspect.getdoc(thing) or ""
    pages = (ROOT / "README.md").read_text() + "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))

    assert text.partition("\n")[0].rstrip().endswith(".")
    assert f"determinism.{name}" in pages
    if inspect.isfunction(thing):
        taken = list(inspect.signature(thing).parameters.values())
        assert [parameter.name for parameter in taken if f"{parameter.name}:" not in text] == []


def test_the_public_functions_are_as_listed() -> None:
    functions = ["check", "check_batch_invariance", "compare", "enable", "patch", "record", "seed", "status", "step"]

    assert [name for name in determinism.__all__ if inspect.isfunction(getattr(determinism, name))] == functions


def kept_files() -> list[Path]:
    """Every file that belongs to the project; in a copy without git, every file that is not generated."""
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listing, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return [ROOT / name for name in found.stdout.split("\0") if name and (ROOT / name).is_file()]
    kept = [path for path in ROOT.iterdir() if not path.name.startswith(".") or path.name == ".ci"]
    files = [path for place in kept for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file()]
    return [path for path in files if "__pycache__" not in path.parts]


def test_nothing_names_the_machine_it_was_made_on() -> None:
    places = [f"{place}/" for place in {ROOT, Path.home()} if len(place.parts) > 1]
    found = [
        path.relative_to(ROOT).as_posix()
        for path in kept_files()
        if any(place in path.read_text(encoding="utf-8", errors="replace") for place in places)
    ]

    assert found == []


TRANSLATED = re.compile(
    r"\bstands\b(?! in\b)|(?<!there )\b(?:is|are|was|were) no (?!longer\b)[a-z]|\bof ours\b", re.IGNORECASE
)
"""Phrases that come from word-by-word translation of "represents", "is not a" and "our"."""


def test_texts_contain_no_literal_translations() -> None:
    texts = [path for path in kept_files() if path.suffix in {".py", ".h", ".cpp", ".md", ".toml"}]
    of_users = [path for path in texts if path.relative_to(ROOT).parts[0] in {"src", "docs", "README.md"}]
    assert of_users
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"
        for path in of_users
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if TRANSLATED.search(line)
    ]
    assert found == []


ANALYSING = ("batch/compare.py", "batch/diagnose.py", "batch/launch.py", "comparison", "diagnose", "report", "resume")
OF_A_RECORDER = {"resume/torch.py"}
"""It runs in the program, next to PyTorch's recorder."""
OP_OF_A_FRAMEWORK = re.compile(r"\b(?:aten|prims|c10d|_c10d_functional|fsdp|tf|keras|jax|inductor|autograd)::")


def texts_in(path: Path) -> Iterator[ast.Constant]:
    """Every string in a file except documentation."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node


def test_only_adapters_and_the_reader_of_old_traces_infer_what_an_op_does_from_its_name() -> None:
    asking = {name_of(path) for path in FILES if "semantics_of" in path.read_text()}
    assert asking == {
        "op_semantics.py", "trace/chunks.py", "frameworks/named_stream.py", "frameworks/torch/edges.py",
    }  # fmt: skip


def test_code_that_analyses_traces_names_no_ops() -> None:
    files = [path for path in FILES if name_of(path).startswith(ANALYSING) and name_of(path) not in OF_A_RECORDER]
    naming = {
        f"{name_of(path)}:{text.lineno}"
        for path in files
        for text in texts_in(path)
        if OP_OF_A_FRAMEWORK.search(str(text.value))
    }
    assert len(files) > 30 and naming == set()
    assert any(OP_OF_A_FRAMEWORK.search(str(text.value)) for text in texts_in(PACKAGE / "op_semantics.py"))

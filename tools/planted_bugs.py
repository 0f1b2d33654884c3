"""Plants bugs at random places in the package, one at a time, and runs the tests: each bug should make one fail.

    python -m tools.planted_bugs --seed 1 --count 20

A bug is a small change of one line: a reversed comparison, `and` for `or`, a negated condition, a number one higher, plus for
minus. The seed chooses the places, spread over the folders of the package. A change that no test notices is printed with its
line; the reader has to judge whether it is a bug at all, or only another way to write the same.

The first failure ends the tests of a bug, and the files that name its module most often run first; so the seconds are the least
that `make test` could take, and a bug that no test notices has been through all of them.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conftest import needed_framework

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/determinism")
FAST, PROGRAMS = ("tests/unit", "tests/architecture"), ("tests/adapters", "tests/e2e", "tests/integrations")
FRAMEWORKS = {
    "tensorflow": "tensorflow",
    "jax": "jax",
    "keras": "tensorflow",
    "flax": "jax",
    "orbax": "jax",
    "integrations": "integrations",
}
"""Parts of a file's path, with the framework whose environment its tests need, else PyTorch's. The first match counts."""
OFF_BY_ONE = 4
"""Numbers below it are indexes and counts, where one more is a bug; 51 in place of a limit of 50 is not."""

OWN_TESTS = "tests/unit/test_planted_bugs.py"
"""These tests read the code with the bug, and notice it for that reason alone."""
NEAREST = 12
"""How many files that name the module run before all others."""
NO_TEST_RAN = 5
"""pytest's exit status if no test ran."""

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}


@dataclass(frozen=True)
class Bug:
    """A change of one file: the text between two offsets is replaced."""

    file: Path
    line: int
    begin: int
    end: int
    replacement: str

    def planted_in(self, text: str) -> str:
        """The text of the file with the bug."""
        return text[: self.begin] + self.replacement + text[self.end :]


def bugs_of(file: Path, text: str) -> list[Bug]:
    """Every bug that can be planted in a file.

    Args:
        file: Its path, for the bugs.
        text: Its content.
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        # The columns of the syntax tree count bytes.
        start = starts[line - 1]
        return start + len(text[start : starts[line]].encode()[:column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def between(left: ast.expr, right: ast.expr, word: str, other: str) -> Iterator[Bug]:
        begin, end = span(left)[1], span(right)[0]
        found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)" if word.isalpha() else re.escape(word), text[begin:end])
        if found is not None:
            line = text.count("\n", 0, begin + found.start()) + 1
            yield Bug(file, line, begin + found.start(), begin + found.end(), other)

    bugs: list[Bug] = []
    for node in _running_code(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                bugs += between(left, right, *_COMPARISONS[type(operator)])
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                words = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                bugs += between(left, right, *words)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
                words = ("+", "-") if isinstance(operator, ast.Add) else ("-", "+")
                bugs += between(left, right, *words)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                begin, end = span(node)
                bugs.append(Bug(file, node.lineno, begin, end, f"({text[slice(*span(operand))]})"))
            case ast.If(test=condition) | ast.IfExp(test=condition) | ast.While(test=condition):
                begin, end = span(condition)
                bugs.append(Bug(file, condition.lineno, begin, end, f"not ({text[begin:end]})"))
            case ast.Constant(value=int() as value) if not isinstance(value, bool) and 0 <= value < OFF_BY_ONE:
                bugs.append(Bug(file, node.lineno, *span(node), str(value + 1)))
            case ast.Constant(value=bool() as value):
                bugs.append(Bug(file, node.lineno, *span(node), str(not value)))
    return bugs


def _running_code(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes of running code: no annotations, no imports for type checking only, no error messages, no f-strings."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                is_checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                if isinstance(child, ast.AST) and not is_checking and not isinstance(child, ast.Raise | ast.JoinedStr):
                    waiting.append(child)


@cache
def _bugs_in(file: Path) -> list[Bug]:
    """Every bug that can be planted in a file of the repository."""
    return bugs_of(file, (ROOT / file).read_text(encoding="utf-8"))


def chosen(seed: int, count: int) -> list[Bug]:
    """Bugs at random places: a folder of the package first, then a file, then a place in it.

    Args:
        seed: A different seed chooses different bugs.
        count: How many to choose.
    """
    chance = random.Random(seed)
    by_folder: dict[Path, list[Path]] = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = file.relative_to(ROOT)
        if "tools" not in relative.parts and _bugs_in(relative):
            by_folder.setdefault(relative.parent, []).append(relative)
    found: list[Bug] = []
    while len(found) < count:
        folder = chance.choice(sorted(by_folder))
        file = chance.choice(by_folder[folder])
        bug = chance.choice(_bugs_in(file))
        if bug.file not in [other.file for other in found]:
            found.append(bug)
    return found


def stages_of(bug: Bug, framework: str) -> list[list[str]]:
    """The tests of a bug in the order in which they run: the files that name its module, the fast ones, the rest.

    Args:
        bug: The bug.
        framework: The framework whose environment runs the tests that start programs.
    """
    module = bug.file.relative_to("src").with_suffix("")
    parts = module.parent.parts if module.name == "__init__" else module.parts
    dotted, package, name = ".".join(parts), ".".join(parts[:-1]), parts[-1]
    named = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{name}\b|\b{name}[._ ]")
    mentions = {
        file.relative_to(ROOT).as_posix(): len(named.findall(file.read_text(encoding="utf-8")))
        for folder in (*FAST, *PROGRAMS)
        for file in (ROOT / folder).rglob("test_*.py")
        if (folder in FAST or needed_framework(file) == framework) and file != ROOT / OWN_TESTS
    }
    nearest = sorted((file for file, count in mentions.items() if count), key=lambda file: -mentions[file])
    nearest.sort(key=lambda file: not file.startswith(FAST))
    first = [file for file in nearest if file.startswith(FAST)][:NEAREST]
    then = [file for file in nearest if not file.startswith(FAST)][:NEAREST]
    return [stage for stage in (first, then, list(FAST), list(PROGRAMS)) if stage]


def first_failure(bug: Bug, workers: int) -> tuple[str | None, float]:
    """Run the tests of a copy of the repository that has the bug.

    The environments are those that `make test` creates.

    Returns:
        The test that failed, or what else happened, None if all passed; and the seconds that it took.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="determinism-bug-") as name:
        copy = Path(name) / "copy"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
        file = copy / bug.file
        shutil.copyfile(ROOT / bug.file, file)
        file.write_text(bug.planted_in(file.read_text(encoding="utf-8")), encoding="utf-8")
        words = {*bug.file.parts, bug.file.stem}
        framework = next((needed for word, needed in FRAMEWORKS.items() if word in words), "torch")
        folder = ".venv" if framework == "torch" else f".venv-{framework}"
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "DETERMINISM_TEST_FRAMEWORKS": framework}
        for stage in stages_of(bug, framework):
            fast = all(path.startswith(FAST) for path in stage)
            python = str(ROOT / (".venv" if fast else folder) / "bin" / "python")
            asked = {**environment, "DETERMINISM_TEST_FRAMEWORKS": "torch"} if fast else environment
            command = [python, "-m", "pytest", "-x", "-q", "-n", str(workers), "--dist", "worksteal", *stage]
            command += [f"--ignore={OWN_TESTS}"]
            ran = subprocess.run(command, cwd=copy, env=asked, capture_output=True, text=True, check=False)
            if ran.returncode not in (0, NO_TEST_RAN):
                lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                what = lines[0].split(" - ")[0] if lines else (ran.stdout + ran.stderr).strip().splitlines()[-1]
                return what, time.monotonic() - began
    return None, time.monotonic() - began


def main() -> None:
    """Plant the bugs and print what noticed each; the exit status is 1 if one went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="a different seed chooses different places")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the bugs to try, of all that --list prints")
    parser.add_argument("--list", action="store_true", help="print the bugs and run nothing")
    asked = parser.parse_args()
    unnoticed = 0
    for number, bug in enumerate(chosen(asked.seed, asked.count), start=1):
        text = (ROOT / bug.file).read_text(encoding="utf-8")
        line = bug.planted_in(text).splitlines()[bug.line - 1].strip()
        print(
            f"{number}. {bug.file}:{bug.line}\n   was {text.splitlines()[bug.line - 1].strip()}\n   is  {line}",
            flush=True,
        )
        if asked.list or (asked.only and number not in asked.only):
            continue
        failed, seconds = first_failure(bug, asked.workers)
        unnoticed += failed is None
        print(f"   {failed or 'NOT NOTICED'}, after {seconds:.0f} s", flush=True)
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()

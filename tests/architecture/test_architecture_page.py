"""The architecture page, the recipes and the READMEs of packages agree with the code and the golden corpus."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from determinism.trace.schema import Table
from determinism.types import Kind

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "determinism"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CASE = ROOT / "tests" / "golden" / "stored" / "kinds" / "late_dropout"
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`([\w./-]+\.(?:py|toml|json|md))`")


def missing_files(text: str, *folders: Path) -> list[str]:
    """Files that a text names but that do not exist."""
    return [name for name in _PATH.findall(text) if not any((folder / name).exists() for folder in folders)]


def test_every_file_that_a_page_names_exists() -> None:
    patches, adapter = PACKAGE / "frameworks/torch/patches", PACKAGE / "frameworks/torch"
    assert missing_files(PAGE, PACKAGE, ROOT, adapter, ROOT / "docs") == []
    tests = [ROOT / "tests" / folder for folder in ("unit", "adapters", "e2e", "architecture")]
    assert missing_files(RECIPES, PACKAGE, ROOT, patches, *tests) == []
    assert len(_PATH.findall(PAGE)) > 20


def test_the_page_lists_eight_files_to_open_first() -> None:
    assert len(re.findall(r"^\d\. `[\w/]+\.py`: ", PAGE, re.MULTILINE)) == 8


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_package_has_a_readme_that_names_existing_files(package: Path) -> None:
    text = (package / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# determinism.{package.relative_to(PACKAGE).as_posix().replace('/', '.')}\n")
    assert missing_files(text, package, ROOT, PACKAGE.parent) == []


def records_of(run: str) -> tuple[dict[tuple[int, int], str], list[dict[str, Any]]]:
    """Names and records of a stored run."""
    with tarfile.open(CASE / "traces.tar.xz") as archive:
        files = {}
        for name in ("names", "records"):
            member = archive.extractfile(f"{run}/processes/main/{name}.arrow")
            assert member is not None
            files[name] = pa.ipc.open_stream(member.read()).read_all().to_pylist()
    return {(row["table"], row["number"]): row["text"] for row in files["names"]}, files["records"]


def test_the_shown_row_and_sentence_come_from_the_golden_corpus() -> None:
    number = int(re.search(r"This is record (\d+) of run 1", PAGE)[1])  # type: ignore[index]
    names, records = records_of("run-1")
    row = records[number]
    cells = dict(
        re.findall(r"(\w+) (-?\d+)", PAGE.partition("as it is stored:\n\n```text\n")[2].partition("inputs")[0])
    )
    assert {name: row[name] for name in cells} == {name: int(cell) for name, cell in cells.items()}
    assert len(cells) == 10
    assert (row["inputs"], row["outputs"][0]["digest"].hex()) == ([], re.search(r"layout 13, digest (\w+)", PAGE)[1])  # type: ignore[index]
    assert f"generators     digest {row['generators'][0]['digest'].hex()}" in PAGE
    shown = [
        names[Table.OP, row["op"]],
        names[Table.MODULE, row["module"]],
        names[Table.LAYOUT, row["outputs"][0]["layout"]],
    ]
    assert [text for text in shown if f"`{text}`" not in PAGE] == []
    _, others = records_of("run-2")
    for digest in (others[number]["outputs"][0]["digest"], others[number]["generators"][0]["digest"]):
        assert f"`{digest.hex()}`" in PAGE
    report = json.loads((CASE / "report.json").read_text(encoding="utf-8"))
    assert report["first_divergence"]["kind"] == Kind.RNG
    told = PAGE.partition("**7. The sentence.**")[2].partition("```text\n")[2].partition("```")[0]
    assert told and told in (CASE / "terminal.txt").read_text(encoding="utf-8")

"""The pages of the site; `make site` builds it, with warnings as errors."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from determinism.knowledge.entries import op_files, ops_of
from tests.architecture.knowledge_pages import DOCS
from tests.architecture.op_pages import file_of, write_pages

OPS = [op for file in op_files() for op in ops_of(file)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all pages."""
    folder = tmp_path_factory.mktemp("site") / "op"
    assert write_pages(folder) == len(OPS) > 200
    return folder


def test_every_op_has_its_own_page(pages: Path) -> None:
    assert [file for file, count in Counter(map(file_of, OPS)).items() if count > 1] == []
    assert len(list(pages.glob("*.md"))) == len(OPS) + 1


def test_a_page_has_everything_that_is_known(pages: Path) -> None:
    for op in OPS:
        text = (pages / f"{file_of(op)}.md").read_text(encoding="utf-8")
        assert f"\n# `{op.name}`\n" in text
        assert (
            sum(line.startswith("| ") for line in text.partition("## Deterministic mode")[0].splitlines())
            == len(op.statuses) + 2
        )
        assert all(f"`{name}`" in text for name in (*op.names, *op.kernels, *op.alerts))


def test_the_index_links_every_name_to_its_page(pages: Path) -> None:
    links = re.findall(r"^- \[`(.*)`\]\((.*)\.md\)$", (pages / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for op in OPS for name in (op.name, *op.names)} == {name for name, _ in links}
    assert {file for _, file in links} == set(map(file_of, OPS))


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"^([a-z-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")

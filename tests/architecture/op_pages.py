"""Write a page for each op, for the site: `make site`. The pages are generated each time and not committed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from determinism.knowledge.entries import Op, key_of, op_files, ops_of
from determinism.knowledge.query import framework_named
from tests.architecture.knowledge_pages import DOCS, code, finished, modes, op_section

FOLDER = DOCS / "op"


def file_of(op: Op) -> str:
    """The name of an op's page, without the extension."""
    words = re.sub(r"[^a-z0-9]+", "-", op.name.lower()).strip("-")
    return f"{op.framework}-{words}"


def page_of(op: Op) -> str:
    """The page of an op."""
    _, *section = op_section(op, "../")
    title = framework_named(op.framework).title
    # Not in any table of contents: Sphinx would write hundreds of entries into the navigation of every page.
    orphan = "---\norphan: true\n---\n"
    lines = [
        orphan,
        f"# {code(op.name)}\n",
        f"{title}. What the words mean: [what is known of ops](../knowledge.md).\n",
    ]
    return finished([*lines, *section, *modes(framework_named(op.framework))])


def index_page(ops: list[Op]) -> str:
    """The page that links to all others by each of their names."""
    lines = ["# All ops\n", "By name; names that lead to the same op have the same page.\n"]
    names = sorted(
        {(name, file_of(op)) for op in ops for name in (op.name, *op.names)}, key=lambda one: (key_of(one[0]), one)
    )
    lines += [f"- [{code(name)}]({file}.md)" for name, file in names]
    return finished(lines)


def write_pages(folder: Path) -> int:
    """Write all pages into a folder, which is emptied first; return their number."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ops = [op for file in op_files() for op in ops_of(file)]
    for op in ops:
        (folder / f"{file_of(op)}.md").write_text(page_of(op), encoding="utf-8")
    (folder / "index.md").write_text(index_page(ops), encoding="utf-8")
    return len(ops)


if __name__ == "__main__":
    write_pages(FOLDER)

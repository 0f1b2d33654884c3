"""Write `docs/lint-rules.md`, and a page for each rule and cause under `docs/cause`: `make docs`."""

from __future__ import annotations

from pathlib import Path

from determinism.diagnose.experiments import causes
from determinism.lint.findings import explained, explanation, rules

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "lint-rules.md"
FOLDER = DOCS / "cause"
_HEAD = """# Rules of lint

Made from the rules by `make docs`. How to use [`determinism lint`](lint.md) is on a page of its own. Each rule has a page, with a bad and a good program; what
`determinism check` names too has the same identifier there, and the same page. `determinism lint --explain RULE` prints it.

| rule | what it is | `check` names it |
|---|---|---|
"""
_ORPHAN = "---\norphan: true\n---\n\n"
"""Keeps a page out of the tables of contents: it would be in the navigation of every page."""


def written() -> str:
    """The page that links to all others."""
    rows = [
        f"| [`{rule.identifier}`](cause/{rule.identifier}.md) | {rule.title} | {'yes' if rule.identifier in causes() else ''} |"
        for rule in rules().values()
    ]
    others = ", ".join(f"[`{name}`](cause/{name}.md)" for name in causes() if name not in rules())
    return f"{_HEAD}{chr(10).join(rows)}\n\nThese causes are seen by `check` alone: {others}.\n"


def pages() -> dict[str, str]:
    """The page of each rule and cause, by the name of its file."""
    return {f"{name}.md": _ORPHAN + explanation(name, causes_page="../causes.md") for name in explained()}


def write() -> None:
    """Write all of them."""
    PAGE.write_text(written(), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.md"):
        file.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

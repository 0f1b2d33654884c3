"""Writes `docs/lint-rules.md` from the rules: `make docs`."""

from __future__ import annotations

from pathlib import Path

from determinism.diagnose.experiments import causes
from determinism.lint.findings import rules

PAGE = Path(__file__).parents[2] / "docs" / "lint-rules.md"
_HEAD = """# Rules of lint

Made from the rules by `make docs`. How to use [`determinism lint`](lint.md) is on a page of its own.
"""


def written() -> str:
    """The page."""
    parts = [_HEAD]
    for rule in rules().values():
        link = " `determinism check` names [the same cause](causes.md)." if rule.identifier in causes() else ""
        device = f" With `--device {rule.device}`:" if rule.device else ""
        parts.append(
            f"## `{rule.identifier}`\n\n{rule.title}. {rule.why}{link}\n\n**Bad:**{device}\n\n```python\n{rule.bad.strip()}\n```\n\n"
            f"**Good:** {rule.remedy[0].lower()}{rule.remedy[1:]}.\n\n```python\n{rule.good.strip()}\n```\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

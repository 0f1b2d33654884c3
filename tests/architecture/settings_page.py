"""Write the known settings into `docs/settings.md`: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from determinism.knowledge.settings import GROUPS, Fact, facts_of, remaining_of

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
BLOCK = re.compile(r"(?P<head><!-- settings: .*? -->\n).*?(?P<end><!-- end of settings -->)", re.DOTALL)


def wanted(fact: Fact) -> str:
    """The recommended value of a setting, in words."""
    if fact.option:
        return f"`{fact.option}=`"
    if fact.value is None:
        return "not set" if fact.kind == "variable" else "looked at"
    warning = f", `{fact.value_if_warning}` with `warn_only`" if fact.value_if_warning else ""
    return f"`{fact.value}`{warning}"


def tables() -> str:
    """The settings of each framework, and what remains nondeterministic."""
    lines = []
    for group in GROUPS:
        lines += ["", f"### {group}", "", "| setting | versions | value | where | why |", "|---|---|---|---|---|"]
        for fact in facts_of(group):
            cells = (f"`{fact.name}`", fact.versions, wanted(fact), fact.condition, f"{fact.why} Source: {fact.source}")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [
        "",
        "## What stays nondeterministic",
        "",
        "| what | versions | device | why | instead |",
        "|---|---|---|---|---|",
    ]
    for group in GROUPS:
        for entry in remaining_of(group):
            cells = (entry.name, f"{group} {entry.versions}", entry.device, entry.why, entry.advice)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", ""])


def written(page: str) -> str:
    """The page with the tables as they should be."""
    return BLOCK.sub(lambda match: match["head"] + tables() + match["end"], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

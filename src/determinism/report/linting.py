"""What lint found, as text like that of other linters, as JSON, and as SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from determinism.errors import legible
from determinism.report.code_scanning import documentation, located_result, sarif_document

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEVELS = {"differs": "error"}


def lint_line(finding: Mapping[str, Any]) -> str:
    """One finding: place, rule, severity and message, and the line below.

    Args:
        finding: As the JSON document has it.
    """
    cell = f"cell {finding['cell']}:" if finding["cell"] is not None else ""
    place = f"{legible(finding['file'])}:{cell}{finding['line']}:{finding['column']}"
    fixable = " [*]" if finding["fixable"] else ""
    head = f"{place}: {finding['rule']}{fixable} ({finding['severity']}) {legible(finding['message'])}"
    return f"{head}\n    {legible(finding['code'])}" if finding["code"] else head


def lint_text(findings: Sequence[Mapping[str, Any]], files: int) -> str:
    """All findings, and how many there are."""
    lines = [lint_line(finding) for finding in findings]
    fixable = sum(bool(finding["fixable"]) for finding in findings)
    of_files = f"in {files} file{'' if files == 1 else 's'}"
    if not findings:
        return f"Nothing found {of_files}."
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'} {of_files}."
    more = f" {fixable} can be fixed: --diff shows how, --fix does it." if fixable else ""
    page = f" {explaining(str(findings[0]['rule']))} shows the page of a rule."
    return "\n".join([*lines, count + more + page])


def explaining(rule: str) -> str:
    """The command that shows the page of a rule."""
    return f"determinism lint --explain {rule}"


def lint_document(findings: Sequence[Mapping[str, Any]], files: int, lines: int) -> str:
    """All findings as JSON."""
    address = documentation()
    described = [
        {
            **finding,
            "help": explaining(str(finding["rule"])),
            "help_uri": None if address is None else f"{address}/cause/{finding['rule']}",
        }
        for finding in findings
    ]
    content = {"version": 1, "files": files, "lines": lines, "findings": described}
    return json.dumps(content, indent=2) + "\n"


def lint_sarif(findings: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """All findings as one SARIF run.

    Args:
        findings: As the JSON document has them.
        titles: Of the rules.
    """
    rules = list(dict.fromkeys(str(finding["rule"]) for finding in findings))
    results = [
        located_result(
            finding["rule"],
            rules.index(finding["rule"]),
            _LEVELS.get(finding["severity"], "warning"),
            f"{finding['message']} ({finding['severity']})",
            {key: finding[key] for key in ("file", "line", "column", "code")},
        )
        for finding in findings
    ]
    return sarif_document({rule: titles[rule] for rule in rules}, results)

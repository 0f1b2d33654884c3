"""Reports for tools that show findings next to the code, SARIF and GitLab's code quality; and lint findings in SARIF, text and JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from determinism.errors import legible
from determinism.lint.findings import explained, explanation
from determinism.report.entries import WHAT_DIFFERS
from determinism.report.formats import checkout, plain_text, relative_to_checkout, summary
from determinism.types import Kind, __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

# What to show at which line, independent of the format.


@dataclass(frozen=True)
class Finding:
    """A finding to show at a line of the program."""

    rule: str
    """What was found: a kind of divergence, a cause, or what a checkpoint lacks."""
    title: str
    message: str
    is_established: bool
    """Whether runs showed it; a likely cause is a warning."""
    site: dict[str, Any] | None
    diffs: list[tuple[str, str]] = field(default_factory=list)
    """Verified fixes: a description and a unified diff of each."""


_DIFFERENT = "different"


def findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings at lines: the causes, or the first divergence if none was found; and what a checkpoint lacks.

    A cause is shown at its own line with its fixes. The divergence that it explains is one of its related places, not a
    second finding: readers of a pull request should see one remark per fault.
    """
    diffs = _verified_diffs(document)
    causes = document["causes"]
    for cause in causes:
        yield Finding(
            cause["id"],
            cause["title"],
            "\n".join([f"{cause['title']} ({cause['status']}).", summary(document), *cause["evidence"]]),
            cause["status"] == "confirmed",
            next(iter(cause["sites"]), None) or _divergence_site(document),
            diffs.pop(cause["id"], []),
        )
    missing = document["missing"] or ()
    for one in missing:
        title = f"The checkpoint lacks {one['id']}"
        yield Finding("checkpoint-incomplete", title, f"{title}. {one['fix']}", True, one["site"])
    if document["verdict"] == _DIFFERENT and not causes and not missing:
        first = document["first_divergence"]
        rule = (first and first["kind"]) or _DIFFERENT
        what = WHAT_DIFFERS[Kind(rule)] if first and first["kind"] else "two runs differ"
        title = f"{what[0].upper()}{what[1:]}"
        yield Finding(rule, title, plain_text(document, details=False), True, _divergence_site(document))


def _divergence_site(document: dict[str, Any]) -> dict[str, Any] | None:
    first = document["first_divergence"]
    return (first["forward_site"] or first["site"]) if first else None


def _verified_diffs(document: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return verified diffs by cause. An unverified fix is only in the message: nobody should apply it with one click."""
    found: dict[str, list[tuple[str, str]]] = {}
    for fix in document["fixes"]:
        if fix["verified"] and fix["patch"]:
            found.setdefault(fix["id"], []).append((fix["title"], fix["patch"]))
    return found


def _fingerprint(finding: Finding) -> str:
    """Return a fingerprint that survives lines added above: of the rule, the file, and the text of the line."""
    site = finding.site or {"file": "", "code": ""}
    parts = (finding.rule, relative_to_checkout(site["file"]), " ".join(site["code"].split()))
    return hashlib.sha256("\0".join(legible(part) for part in parts).encode()).hexdigest()[:32]


def _shown(text: str) -> str:
    """Make every line of a text safe to print."""
    return "\n".join(legible(line) for line in text.replace("\r\n", "\n").split("\n"))


# SARIF 2.1.0: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "SRCROOT"
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def sarif_text(document: dict[str, Any]) -> str:
    """Write one SARIF run: a result for each finding, with the verified fixes as replacements of lines.

    Runs that are the same have no result. Without a verdict, the invocation is marked as failed and says why.
    """
    found = list(findings(document))
    rules = list(dict.fromkeys(finding.rule for finding in found))
    titles = {finding.rule: finding.title for finding in reversed(found)}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "determinism",
                "fullName": "Framework Determinism",
                "version": __version__,
                "rules": [_rule(rule, titles[rule]) for rule in rules],
            }
        },
        "originalUriBaseIds": {_ROOT: {"uri": f"{checkout().as_uri()}/"}},
        "invocations": [_invocation(document)],
        "results": [_result(document, finding, rules.index(finding.rule)) for finding in found],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": document["verdict"], "headline": _shown(summary(document))},
    }
    return _json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(identifier: str, title: str) -> dict[str, Any]:
    """Return a rule with its page, shared by lint and `check`; a kind of divergence has none."""
    described: dict[str, Any] = {"id": legible(identifier), "shortDescription": {"text": _shown(title)}}
    if identifier in explained():
        page = explanation(identifier)
        described["help"] = {"text": page, "markdown": page}
        address = documentation()
        if address is not None:
            described["helpUri"] = f"{address}/cause/{identifier}"
    return described


def documentation() -> str | None:
    """Return the web address of the documentation from the installed package's metadata; None if it has none."""
    try:
        addresses = metadata("determinism").get_all("Project-URL") or ()
    except PackageNotFoundError:
        return None
    named = dict(address.split(", ", 1) for address in addresses if ", " in address)
    found = named.get("Documentation")
    return None if found is None else found.rstrip("/")


def sarif_document(titles: dict[str, str], results: list[dict[str, Any]]) -> str:
    """Write one SARIF run whose results come from reading code, not from running it.

    Args:
        titles: The titles of the rules, in the order of their indices.
        results: Results from `located_result`.
    """
    rules = [_rule(rule, title) for rule, title in titles.items()]
    driver = {"name": "determinism", "fullName": "Framework Determinism", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_ROOT: {"uri": f"{checkout().as_uri()}/"}},
        "invocations": [{"executionSuccessful": True}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return _json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def located_result(rule: str, index: int, level: str, message: str, site: dict[str, Any]) -> dict[str, Any]:
    """Return a result at a line.

    Args:
        rule: The identifier of its rule.
        index: The index of the rule among those of the run.
        level: The level in SARIF's terms.
        message: What was found.
        site: File, line and code.
    """
    finding = Finding(rule, "", message, level == "error", site)
    return {
        "ruleId": legible(rule),
        "ruleIndex": index,
        "level": level,
        "message": {"text": _shown(message)},
        "partialFingerprints": {"determinism/v1": _fingerprint(finding)},
        "locations": [_location(site)],
    }


def _invocation(document: dict[str, Any]) -> dict[str, Any]:
    notes = [
        {"level": "error", "descriptor": {"id": legible(one["id"])}, "message": {"text": _shown(one["message"])}}
        for one in document["trouble"]
    ]
    ended = document["verdict"] != "inconclusive"
    return {"executionSuccessful": ended, **({"toolExecutionNotifications": notes} if notes else {})}


def _result(document: dict[str, Any], finding: Finding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": legible(finding.rule),
        "ruleIndex": rule,
        "level": "error" if finding.is_established else "warning",
        "message": {"text": _shown(finding.message)},
        "partialFingerprints": {"determinism/v1": _fingerprint(finding)},
    }
    if finding.site is not None:
        result["locations"] = [_location(finding.site)]
    site = _divergence_site(document)
    if site is not None and site != finding.site:
        result["relatedLocations"] = [{**_location(site), "message": {"text": "The first record that differs."}}]
    fixes = [_fix(title, diff) for title, diff in finding.diffs]
    if fixes:
        result["fixes"] = fixes
    return result


def _location(site: dict[str, Any]) -> dict[str, Any]:
    region = {"startLine": max(site["line"], 1), **({"startColumn": site["column"]} if site.get("column") else {})}
    snippet = {"snippet": {"text": legible(site["code"])}} if site["code"] else {}
    return {"physicalLocation": {"artifactLocation": _artifact(site["file"]), "region": {**region, **snippet}}}


def _artifact(file: str) -> dict[str, str]:
    path = PurePath(relative_to_checkout(file))
    # "surrogatepass", since a name from a stored report may hold any code point.
    address = quote(path.as_posix().encode("utf-8", "surrogatepass"))
    return {"uri": f"file://{address}"} if path.is_absolute() else {"uri": address, "uriBaseId": _ROOT}


def _fix(title: str, diff: str) -> dict[str, Any]:
    """Convert a unified diff to replacements of whole lines, each at its place in the unchanged file."""
    changes: list[dict[str, Any]] = []
    lines = diff.split("\n")
    line = 0
    while line < len(lines):
        if lines[line].startswith("--- ") and line + 1 < len(lines) and lines[line + 1].startswith("+++ "):
            changes.append({"artifactLocation": _artifact(lines[line][4:].rstrip("\t")), "replacements": []})
            line += 2
            continue
        hunk = _HUNK.match(lines[line])
        line += 1
        if hunk is None or not changes:
            continue
        body: list[str] = []
        while line < len(lines) and not _HUNK.match(lines[line]) and not lines[line].startswith("--- "):
            body.append(lines[line])
            line += 1
        changes[-1]["replacements"] += _replacements(body, int(hunk[1]) + (hunk[2] == "0"))
    return {
        "description": {"text": _shown(title)},
        "artifactChanges": [change for change in changes if change["replacements"]],
    }


def _replacements(body: list[str], line: int) -> Iterator[dict[str, Any]]:
    """Yield a replacement for each group of changed lines of a hunk that starts at this line of the unchanged file."""
    number = 0
    while number < len(body):
        if body[number][:1] not in ("-", "+"):
            line += body[number][:1] != "\\"
            number += 1
            continue
        removed, added = 0, ""
        while number < len(body) and body[number][:1] in ("-", "+"):
            if body[number].startswith("-"):
                removed += 1
            else:
                added += f"{body[number][1:]}\n"
            number += 1
        region = {"startLine": line, "startColumn": 1, "endLine": line + removed, "endColumn": 1}
        yield {"deletedRegion": region, "insertedContent": {"text": added}}
        line += removed


# GitLab: https://docs.gitlab.com/ci/testing/code_quality/, "Code Quality report format".


def code_quality_text(document: dict[str, Any]) -> str:
    """Write findings for GitLab's merge requests; those without a line of the program are left out."""
    listed = [
        {
            "description": _shown(finding.message).partition("\n")[0],
            "check_name": f"determinism-{legible(finding.rule)}",
            "fingerprint": _fingerprint(finding),
            "severity": "major" if finding.is_established else "minor",
            "location": {
                "path": legible(relative_to_checkout(finding.site["file"])),
                "lines": {"begin": max(finding.site["line"], 1)},
            },
        }
        for finding in findings(document)
        if finding.site is not None
    ]
    return _json_text(listed)


def _json_text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


# Lint findings.


_LEVELS = {"differs": "error"}


def lint_line(finding: Mapping[str, Any]) -> str:
    """Write one finding: place, rule, severity and message, and the code on the next line."""
    cell = f"cell {finding['cell']}:" if finding["cell"] is not None else ""
    place = f"{legible(finding['file'])}:{cell}{finding['line']}:{finding['column']}"
    fixable = " [*]" if finding["fixable"] else ""
    head = f"{place}: {finding['rule']}{fixable} ({finding['severity']}) {legible(finding['message'])}"
    return f"{head}\n    {legible(finding['code'])}" if finding["code"] else head


def lint_text(findings: Sequence[Mapping[str, Any]], files: int) -> str:
    """Write all findings, and how many there are."""
    lines = [lint_line(finding) for finding in findings]
    fixable = sum(bool(finding["fixable"]) for finding in findings)
    of_files = f"in {files} file{'' if files == 1 else 's'}"
    if not files:
        return "There is no Python file or notebook here, so nothing was read."
    if not findings:
        return f"Nothing found {of_files}."
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'} {of_files}."
    more = f" {fixable} can be fixed: --diff shows how, --fix does it." if fixable else ""
    page = f" {explaining(str(findings[0]['rule']))} shows the page of a rule."
    return "\n".join([*lines, count + more + page])


def explaining(rule: str) -> str:
    """Return the command that shows the page of a rule."""
    return f"determinism lint --explain {rule}"


def lint_document(findings: Sequence[Mapping[str, Any]], files: int, lines: int) -> str:
    """Write all findings as JSON."""
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
    """Write all findings as one SARIF run."""
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

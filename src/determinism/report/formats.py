"""Reports for continuous integration and editors: JUnit XML, annotations, and lines as compilers print them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any
from xml.etree import ElementTree as Xml

from determinism.errors import legible
from determinism.report.entries import headline

# The content of a document, as plain text.


def summary(document: dict[str, Any]) -> str:
    """Return the headline; if the document has none yet, one composed from the rest."""
    return str(document["headline"] or headline(document))


_LABEL_WIDTH = 18
_CODE_MARGIN = 4


def plain_text(document: dict[str, Any], *, details: bool) -> str:
    """Write the report as text without layout: one line for each entry.

    Args:
        document: The JSON document.
        details: Whether to include entries that are shown only on request.
    """
    lines = [summary(document)]
    section = None
    for entry in document["story"]:
        if entry["is_detail"] and not details:
            continue
        if entry["section"] != section:
            lines.append("")
            section = entry["section"]
        text = entry["text"] if entry["is_code"] else _one_line(entry["text"])
        label = _one_line(entry["label"])
        if label:
            lead = f"{label} ".ljust(_LABEL_WIDTH)
        else:
            lead = " " * (_CODE_MARGIN if entry["is_code"] else _LABEL_WIDTH)
        lines.append(f"{lead}{text}".rstrip())
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The report as workflow commands of GitHub Actions, which show it next to the lines of the program.

_MOST_CAUSES = 5
_CHECKOUTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables with the folder into which GitHub and GitLab checked out the repository."""


def checkout() -> Path:
    """Return the folder that paths are relative to: the checked-out repository, or the current folder."""
    named = next((os.environ[name] for name in _CHECKOUTS if os.environ.get(name)), None)
    return Path(named or os.getcwd()).absolute()


def relative_to_checkout(file: str) -> str:
    """Return the path within the checked-out repository, if the file is in it."""
    try:
        return PurePath(file).relative_to(checkout()).as_posix()
    except (ValueError, OSError):
        return file


def annotation_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each annotation.

    A workflow command is `::error file=…,line=…,title=…::message`; in its values `%`, line breaks, and in properties also `:` and
    `,` are escaped as the runner's own toolkit does (https://github.com/actions/toolkit, packages/core/src/command.ts).
    """
    first = document["first_divergence"]
    match document["verdict"]:
        case "different":
            site = first and (first["forward_site"] or first["site"])
            yield _command("error", "determinism: different", plain_text(document, details=False), site)
        case "inconclusive":
            yield _command("error", "determinism: inconclusive", summary(document))
        case _:
            yield _command("notice", "determinism: same", summary(document))
    for cause in document["causes"][:_MOST_CAUSES]:
        for site in cause["sites"][:1] or [None]:
            title = f"determinism: {cause['status']} cause"
            yield _command("warning", title, "\n".join([cause["title"], *cause["evidence"]]), site)
    for missing in document["missing"] or ():
        yield _command("error", f"determinism: the checkpoint lacks {missing['id']}", missing["fix"], missing["site"])


def step_summary(document: dict[str, Any]) -> str:
    """Write the report in Markdown for the page of a workflow run; none of its text is interpreted as markup."""
    text = "\n".join(legible(line) for line in plain_text(document, details=False).split("\n"))
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"### Determinism: {document['verdict']}\n\n{fence}text\n{text}\n{fence}\n"


def problem_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield one short line for each annotation, as compilers print them: `train.py:21: error: text [rule]`.

    Editors have matchers for this format. Paths are relative to the checked-out repository or the current folder.
    """
    first = document["first_divergence"]
    site = first and (first["forward_site"] or first["site"])
    match document["verdict"]:
        case "different":
            yield _problem("error", summary(document), (first and first["kind"]) or "different", site)
        case "inconclusive":
            trouble = document["trouble"][0]["id"] if document["trouble"] else "inconclusive"
            yield _problem("error", summary(document), trouble)
        case _:
            yield _problem("note", summary(document), "same")
    for cause in document["causes"][:_MOST_CAUSES]:
        for site in cause["sites"][:1] or [None]:
            yield _problem("warning", f"{cause['title']} ({cause['status']})", cause["id"], site)
    for missing in document["missing"] or ():
        text = f"The checkpoint lacks {missing['id']}. {missing['fix']}"
        yield _problem("error", text, "checkpoint-incomplete", missing["site"])


def _problem(level: str, text: str, rule: str, site: dict[str, Any] | None = None) -> str:
    place = "determinism" if site is None else f"{relative_to_checkout(site['file'])}:{site['line']}"
    return legible(f"{place}: {level}: {_one_line(text)} [{rule}]")


def _command(level: str, title: str, message: str, site: dict[str, Any] | None = None) -> str:
    properties = {"title": title}
    if site is not None:
        properties = {"file": relative_to_checkout(site["file"]), "line": str(site["line"]), **properties}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    lines = [legible(line) for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return legible(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


_SUITE = "determinism"
_CASE = "every tensor is bit-identical in all runs"
_KEPT = re.compile(r"([\n\t])")
"""Control characters that a text may contain; XML forbids most others."""


def junit_text(document: dict[str, Any]) -> str:
    """Write one test suite with one test: it fails if the runs differ, and is an error if there is no verdict."""
    verdict = document["verdict"]
    seconds = f"{sum(run['seconds'] or 0 for run in document['runs']):.3f}"
    counts = {
        "tests": "1",
        "failures": str(int(verdict == "different")),
        "errors": str(int(verdict == "inconclusive")),
        "skipped": "0",
        "time": seconds,
    }
    root = Xml.Element("testsuites", {"name": _SUITE, **counts})
    suite = Xml.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    _add_properties(suite, document)
    command = shlex.join(document["runs"][0]["command"]) if document["runs"] else "determinism"
    case = Xml.SubElement(
        suite, "testcase", {"classname": _safe(command) or _SUITE, "name": _CASE, "time": seconds, **_place(document)}
    )
    if verdict == "different":
        first = document["first_divergence"]
        kind = first["kind"] if first is not None and first["kind"] else "different"
        failure = Xml.SubElement(case, "failure", {"type": kind, "message": _safe(summary(document))})
        failure.text = _safe(plain_text(document, details=True))
    elif verdict == "inconclusive":
        trouble = document["trouble"][0]["id"] if document["trouble"] else "inconclusive"
        error = Xml.SubElement(case, "error", {"type": _safe(trouble), "message": _safe(summary(document))})
        error.text = _safe("\n".join(one["message"] for one in document["trouble"]))
    else:
        Xml.SubElement(case, "system-out").text = _safe(plain_text(document, details=True))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _add_properties(suite: Xml.Element, document: dict[str, Any]) -> None:
    recorded = document["recorded"]
    facts = {
        "verdict": document["verdict"],
        "runs": len(document["runs"]),
        "records": recorded["records"],
        "steps": recorded["steps"],
        "processes": recorded["processes"],
        "blind_spots": len(recorded["blind_spots"]),
    }
    properties = Xml.SubElement(suite, "properties")
    for name, value in facts.items():
        Xml.SubElement(properties, "property", {"name": name, "value": str(value)})


def _place(document: dict[str, Any]) -> dict[str, str]:
    """Return the location given for the test: the line of the first divergence."""
    first = document["first_divergence"]
    site = first and (first["forward_site"] or first["site"])
    return {"file": _safe(site["file"]), "line": str(site["line"])} if site else {}


def _safe(text: str) -> str:
    """Make a text valid in XML: control characters and lone surrogates become visible escapes, newlines and tabs stay."""
    return "".join(part if _KEPT.fullmatch(part) else legible(part) for part in _KEPT.split(text))

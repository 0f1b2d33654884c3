"""Reports for continuous integration: JUnit XML and annotations."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree as Xml

from determinism.errors import legible

# The verdict of a document in one sentence.


def summary(document: dict[str, Any]) -> str:
    """The headline; of documents that have none yet, what can be said from the rest."""
    if document["headline"]:
        return str(document["headline"])
    first = document["first_divergence"]
    match document["verdict"]:
        case "same":
            return f"Same: {document['recorded']['records']:,} records were bit-identical"
        case "different" if first is not None:
            return f"Different: the runs depart from each other at step {first['step']}, in {first['op']}"
        case "different":
            return "Different: the runs are not bit-identical"
        case _:
            messages = [trouble["message"] for trouble in document["trouble"]]
            return f"Inconclusive: {' '.join(messages) or 'the runs could not be compared'}"


# The report as workflow commands of GitHub Actions, which show it beside the lines of the program.

_MOST_CAUSES = 5
_WORKSPACE = "GITHUB_WORKSPACE"


def annotation_lines(document: dict[str, Any]) -> Iterator[str]:
    """One line for each annotation.

    A workflow command is `::error file=…,line=…,title=…::message`; in its values `%`, line breaks, and in properties also `:` and
    `,` are escaped as the runner's own toolkit does (https://github.com/actions/toolkit, packages/core/src/command.ts).
    """
    first = document["first_divergence"]
    match document["verdict"]:
        case "different":
            site = first and (first["forward_site"] or first["site"])
            yield _command("error", "determinism: different", _difference(document), site)
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


def _difference(document: dict[str, Any]) -> str:
    first = document["first_divergence"]
    lines = [summary(document)]
    if first is not None:
        module = f" in module {first['module']}" if first["module"] else ""
        lines.append(f"First record that differs: {first['op']}{module}")
        lines += [entry["text"] for entry in document["story"] if entry["label"] == "kind"]
    lines += [f"Fix ({'verified' if fix['verified'] else 'not verified'}): {fix['title']}" for fix in document["fixes"]]
    return "\n".join(lines)


def _command(level: str, title: str, message: str, site: dict[str, Any] | None = None) -> str:
    properties = {"title": title}
    if site is not None:
        properties = {"file": _relative(site["file"]), "line": str(site["line"]), **properties}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _relative(file: str) -> str:
    """The path within the checked-out repository, if the file is there."""
    try:
        return PurePath(file).relative_to(os.environ.get(_WORKSPACE) or os.getcwd()).as_posix()
    except (ValueError, OSError):
        return file


def _data(text: str) -> str:
    lines = [legible(line) for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return legible(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


_SUITE = "determinism"
_CASE = "every tensor is bit-identical in all runs"
_KEPT = "\n\t"
"""Control characters that a text may have; XML forbids most others."""


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
        failure.text = _safe(told(document))
    elif verdict == "inconclusive":
        trouble = document["trouble"][0]["id"] if document["trouble"] else "inconclusive"
        error = Xml.SubElement(case, "error", {"type": _safe(trouble), "message": _safe(summary(document))})
        error.text = _safe("\n".join(one["message"] for one in document["trouble"]))
    else:
        Xml.SubElement(case, "system-out").text = _safe(told(document))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def told(document: dict[str, Any]) -> str:
    """The report as plain text: the headline, the story, causes, fixes and blind spots."""
    lines = [summary(document), ""]
    for entry in document["story"]:
        indent = "    " if entry["is_code"] else ""
        lines.append(f"{entry['label']:<14}{indent}{_one_line(entry['text'])}".rstrip())
    for cause in document["causes"]:
        lines += ["", f"cause         {cause['status']}: {_one_line(cause['title'])}"]
        lines += [
            f"{'':14}{_one_line(site['file'])}:{site['line']}  {_one_line(site['code'])}" for site in cause["sites"]
        ]
        lines += [f"{'':14}{_one_line(sentence)}" for sentence in cause["evidence"]]
    for fix in document["fixes"]:
        lines += ["", f"fix           {'verified' if fix['verified'] else 'not verified'}: {_one_line(fix['title'])}"]
        lines += [f"{'':14}{_one_line(item['name'])}={_one_line(item['value'])}" for item in fix["env"] or ()]
        lines += [f"{'':14}{line}" for line in (fix["code"] or "").splitlines()]
    spots = document["recorded"]["blind_spots"]
    lines += ["", *(f"blind spot    {_one_line(spot['what'])}: {_one_line(spot['reason'])}" for spot in spots)]
    return "\n".join(lines).rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


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
    """Where the test is said to be: the line of the first divergence."""
    first = document["first_divergence"]
    site = first and (first["forward_site"] or first["site"])
    return {"file": _safe(site["file"]), "line": str(site["line"])} if site else {}


def _safe(text: str) -> str:
    """What XML can hold: control characters and lone surrogates become visible escapes, lines and tabs stay."""
    return "".join(character if character in _KEPT else legible(character) for character in text)

"""The report as JUnit XML, which continuous integration systems show."""

from __future__ import annotations

import shlex
from typing import Any
from xml.etree import ElementTree as Xml

from determinism.report.legible import legible
from determinism.report.summary import summary

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

"""The report as workflow commands of GitHub Actions, which show it beside the lines of the program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from determinism.report.legible import legible
from determinism.report.summary import summary

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

"""Stored traces and the reports on them: unpacked, compared and rendered without any framework."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from determinism.batch.compare import compare_batches
from determinism.comparison.result import Comparison, Recorded, Trouble
from determinism.comparison.runs import compare
from determinism.errors import DeterminismError
from determinism.report.document import document, json_text, read_document
from determinism.report.formats import annotation_lines, junit_text
from determinism.report.html import page
from determinism.report.show import render_trace
from determinism.report.terminal import render
from determinism.resume.launch import compare_resume_runs
from determinism.trace.opening import open_trace
from determinism.types import Verdict
from tests.golden.cases import DOCUMENT, Case

FOLDER = Path(__file__).with_name("stored")
ARCHIVE = "traces.tar.xz"
WIDTH = 100
_RESUME_RUNS = ("full", "first", "resumed")
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def folder_of(case: Case) -> Path:
    """The folder of the stored traces and reports of a case."""
    return FOLDER / case.name


def reports_of(case: Case, folder: Path, change: Callable[[Path], object] = lambda folder: None) -> dict[str, str]:
    """Compare the stored traces of a case, and render the outcome in every form.

    Args:
        case: The case.
        folder: The folder into which the traces are unpacked.
        change: Called with that folder before they are compared.

    Returns:
        The texts, by the names of the files in which they are stored.
    """
    if case.compared == "document":
        return _pages(read_document(folder_of(case) / DOCUMENT))
    with tarfile.open(folder_of(case) / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    change(folder)
    with _within(folder):
        comparison, error = _compared(case, _runs(case))
        content = document(comparison)
        texts = {DOCUMENT: json_text(content), "terminal.txt": error or _printed(content), **_pages(content)}
        if error is None and case.compared == "runs":
            texts["shown.txt"] = _shown(_runs(case)[0])
    return texts


def stored_reports(case: Case) -> dict[str, str]:
    """The stored texts."""
    kept = [path for path in sorted(folder_of(case).iterdir()) if path.name != ARCHIVE]
    if case.compared == "document":
        kept = [path for path in kept if path.name != DOCUMENT]
    return {path.name: path.read_text(encoding="utf-8") for path in kept}


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    """Make a folder the current one: paths in reports are relative to it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _runs(case: Case) -> list[Path]:
    """The traces in the current folder, in the order in which they were made."""
    if case.compared == "resume":
        return [Path(name) for name in _RESUME_RUNS]
    return sorted((path for path in Path().iterdir() if path.is_dir()), key=lambda path: (_size(path), path.name))


def _size(folder: Path) -> int:
    """The number of a run, or the size of its batches."""
    number = re.search(r"\d+", folder.name)
    assert number is not None, folder
    return int(number[0])


def _compared(case: Case, runs: list[Path]) -> tuple[Comparison, str | None]:
    """The outcome, and what is printed instead of a report if there is none."""
    try:
        if case.compared == "resume":
            full, first, resumed = map(open_trace, runs)
            return compare_resume_runs(full, first, resumed)[0], None
        if case.compared == "batch":
            return compare_batches([open_trace(run) for run in runs], [_size(run) for run in runs]), None
        return compare(*runs, strict=case.strict, allow_failure=case.allow_failure), None
    except DeterminismError as error:
        trouble = Trouble(error.identifier, error.message)
        return Comparison(Verdict.INCONCLUSIVE, [], Recorded(), [trouble]), "\n".join([*error.lines, ""])


def _printed(content: dict[str, Any]) -> str:
    file = io.StringIO()
    render(content, Console(file=file, width=WIDTH))
    return file.getvalue()


def _shown(run: Path) -> str:
    """The output of `determinism show` for a trace, without its size, which depends on the format."""
    file = io.StringIO()
    render_trace(open_trace(run), Console(file=file, width=WIDTH))
    return re.sub(r", [\d,]+ bytes \([\d.,]+ per record\)", "", file.getvalue())


def _pages(content: dict[str, Any]) -> dict[str, str]:
    """The texts made from a document; the page without its style, which is always the same."""
    # As a reader of the document gets it, not as it is in memory.
    content = json.loads(json.dumps(content))
    return {
        "page.html": _STYLE.sub("<style></style>", page(content)),
        "junit.xml": junit_text(content),
        "annotations.txt": "".join(f"{line}\n" for line in annotation_lines(content)),
    }

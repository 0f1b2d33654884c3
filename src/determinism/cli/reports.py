"""What a subcommand writes of its verdict: the files that options name, and annotations."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from determinism.cli.defects import defect
from determinism.errors import DeterminismError, UsageError


@dataclass(frozen=True)
class Reports:
    """Where the report goes besides the terminal."""

    json_file: Path | None = None
    html_file: Path | None = None
    junit_file: Path | None = None
    is_annotated: bool = False

    @property
    def files(self) -> dict[str, Path]:
        """The files that were asked for, by option."""
        named = {"--json": self.json_file, "--html": self.html_file, "--junit": self.junit_file}
        return {option: file for option, file in named.items() if file is not None}

    def check_places(self, source: Path | None = None) -> None:
        """See before anything runs that the reports can be written.

        Args:
            source: What they are made from.

        Raises:
            UsageError: One cannot, or two would be the same file, or it is what they are made from.
        """
        taken = {} if source is None else {source.resolve(): "the report"}
        for option, file in self.files.items():
            _check_place(option, file)
            other = taken.setdefault(file.resolve(), option)
            if other != option and not file.is_char_device():
                raise UsageError(
                    "report-files-equal",
                    f"{other} and {option} name the same file, {file}, so one report would replace the other and nothing was "
                    "started. Give each a file of its own.",
                )

    @property
    def is_wanted(self) -> bool:
        """Whether anything was asked for."""
        return bool(self.files) or self.is_annotated

    def write(self, content: dict[str, Any], say: Callable[[str], None]) -> bool:
        """Write the files; one that cannot be written does not keep the others from being written.

        Args:
            content: The JSON document.
            say: Told what could not be written.

        Returns:
            Whether all could be written.
        """
        from determinism.report.report_file import write_report

        failures: list[DeterminismError] = []
        for option, file in self.files.items():
            try:
                write_report(file, _written(option, content), option)
            except DeterminismError as error:
                failures.append(error)
            except Exception as error:
                failures.append(defect(error, f"{option} made nothing"))
        for failure in failures:
            say(failure.message)
        return not failures

    def annotate(self, content: dict[str, Any]) -> None:
        """Print the annotations."""
        if self.is_annotated:
            from determinism.report.annotations import annotation_lines

            for line in annotation_lines(content):
                click.echo(line)

    @contextmanager
    def commands_stopped(self) -> Iterator[None]:
        """Keep a workflow's runner from obeying what is printed inside: strings of the program may look like commands."""
        if not self.is_annotated:
            yield
            return
        token = secrets.token_hex(16)
        click.echo(f"::stop-commands::{token}")
        try:
            yield
        finally:
            click.echo(f"::{token}::")


def _written(option: str, content: dict[str, Any]) -> str:
    if option == "--html":
        from determinism.report.html.page import page

        return page(content)
    if option == "--junit":
        from determinism.report.junit import junit_text

        return junit_text(content)
    from determinism.report.document import json_text

    return json_text(content)


def _check_place(option: str, file: Path) -> None:
    folder = file.parent
    if folder.is_dir() and os.access(file if file.exists() else folder, os.W_OK):
        return
    found = "may not be written to" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
    raise UsageError(
        "report-unwritable",
        f"{option} {file}: {file if file.exists() else folder} {found}, so nothing was started. Give a file in "
        "a folder that exists and that you may write to.",
    )

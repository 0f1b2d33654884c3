"""Options shared by several subcommands, and the report files that they request."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from determinism.errors import DeterminismError, UsageError, legible
from determinism.run_spec import STATE_EVERY, RunSpec
from determinism.types import PRECISIONS, Level

# The message for an unexpected error, which is a bug of our own.

TRACEBACK_VARIABLE = "DETERMINISM_TRACEBACK"


def defect(error: Exception, consequence: str) -> DeterminismError:
    """Print the traceback if requested, and return the message for an unexpected error.

    Args:
        error: The exception.
        consequence: The consequence for the command, as a clause.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return DeterminismError(
        "internal-error",
        f"{type(error).__name__}{place}: {error}. This is a bug in determinism, so {consequence}; traces made so far "
        f"are kept. Please report it, with the output of {TRACEBACK_VARIABLE}=1.",
    )


# The output of a verdict besides the terminal: report files and annotations.


@dataclass(frozen=True)
class Reports:
    """Where the report goes besides the terminal, and in how much detail."""

    json_file: Path | None = None
    html_file: Path | None = None
    junit_file: Path | None = None
    is_annotated: bool = False
    is_verbose: bool = False
    """Whether the terminal shows every detail."""
    sarif_file: Path | None = None
    code_quality_file: Path | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The requested files, by option."""
        named = {
            "--json": self.json_file,
            "--html": self.html_file,
            "--junit": self.junit_file,
            "--sarif": self.sarif_file,
            "--code-quality": self.code_quality_file,
        }
        return {option: file for option, file in named.items() if file is not None}

    def check_places(self, source: Path | None = None) -> None:
        """Check that the reports can be written, before anything runs.

        Args:
            source: The stored report that they are made from, if any.

        Raises:
            UsageError: A file cannot be written, two options name the same file, or one names `source`.
        """
        taken = {} if source is None else {source.resolve(): "the report"}
        for option, file in self.files.items():
            _check_place(option, file)
            other = taken.setdefault(file.resolve(), option)
            if other != option and not file.is_char_device():
                raise UsageError(
                    "report-files-equal",
                    f"{other} and {option} name the same file, {file}, so one report would replace the other, and "
                    "nothing was started. Give each its own file.",
                )

    @property
    def is_wanted(self) -> bool:
        """Whether any file or annotation is requested."""
        return bool(self.files) or self.is_annotated

    def write(self, content: dict[str, Any], say: Callable[[str], None]) -> bool:
        """Write the files; a failure does not prevent the others from being written.

        Args:
            content: The JSON document.
            say: Called with a message for each failure.

        Returns:
            Whether all files were written.
        """
        from determinism.report.document import write_report

        failures: list[DeterminismError] = []
        for option, file in self.files.items():
            try:
                write_report(file, _written(option, content), option)
            except DeterminismError as error:
                failures.append(error)
            except Exception as error:
                failures.append(defect(error, f"{option} wrote nothing"))
        for failure in failures:
            say(failure.message)
        return not failures

    def annotate(self, content: dict[str, Any]) -> None:
        """Print the annotations: workflow commands on GitHub's runner, else short lines that editors understand."""
        if not self.is_annotated:
            return
        from determinism.report.formats import annotation_lines, problem_lines, step_summary

        if not _is_github():
            click.echo("\n".join(problem_lines(content)))
            return
        for line in annotation_lines(content):
            click.echo(line)
        page = os.environ.get("GITHUB_STEP_SUMMARY")
        if page:
            # The summary is optional: the verdict must not depend on whether it could be written.
            with suppress(OSError), open(page, "a", encoding="utf-8") as file:
                file.write(step_summary(content))

    @contextmanager
    def commands_stopped(self) -> Iterator[None]:
        """Keep a workflow's runner from obeying enclosed output: strings of the program may look like commands."""
        if not self.is_annotated or not _is_github():
            yield
            return
        import secrets

        token = secrets.token_hex(16)
        click.echo(f"::stop-commands::{token}")
        try:
            yield
        finally:
            click.echo(f"::{token}::")


def _is_github() -> bool:
    """Whether GitHub's runner, or a compatible one, reads the output."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _written(option: str, content: dict[str, Any]) -> str:
    if option == "--html":
        from determinism.report.html import page

        return page(content)
    if option == "--junit":
        from determinism.report.formats import junit_text

        return junit_text(content)
    if option == "--sarif":
        from determinism.report.code_scanning import sarif_text

        return sarif_text(content)
    if option == "--code-quality":
        from determinism.report.code_scanning import code_quality_text

        return code_quality_text(content)
    from determinism.report.document import json_text

    return json_text(content)


def _check_place(option: str, file: Path) -> None:
    folder = file.parent
    if folder.is_dir() and os.access(file if file.exists() else folder, os.W_OK):
        return
    found = "is not writable" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
    raise UsageError(
        "report-unwritable",
        f"{option} {file}: {file if file.exists() else folder} {found}, so nothing was started. Give a file in an "
        "existing folder that you can write to.",
    )


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

PROGRAM_SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Everything from the program's name onward belongs to the program."""


class Size(click.ParamType):  # type: ignore[type-arg]  # older versions of click have no type argument
    """A number of bytes, such as `500M` or `2GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert the text to bytes."""
        if isinstance(value, int):
            return value
        text = str(value).strip().lower().removesuffix("b")
        digits = text.rstrip("kmgti")
        try:
            size = int(float(digits) * _UNITS[text[len(digits) :]])
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is not a size. Give a number of bytes such as 500M, 2G or 2GiB.", param, ctx)
        if size <= 0:
            self.fail(f"{value!r} leaves no room. Give a size above 0.", param, ctx)
        return size


class Factors(click.ParamType):  # type: ignore[type-arg]  # as above
    """Comma-separated names of factors that can be perturbed; or `all`."""

    name = "factors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Convert the text to names."""
        from determinism.factors.catalog import PERTURBABLE

        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        unknown = [name for name in names if name != "all" and name not in PERTURBABLE]
        if unknown or not names:
            found = f"{', '.join(unknown)} cannot be perturbed" if unknown else "no factor is named"
            self.fail(f"{found}. Give all, or some of: {', '.join(PERTURBABLE)}.", param, ctx)
        return PERTURBABLE if "all" in names else tuple(dict.fromkeys(names))


_RECORDING_OPTIONS = {
    "level": click.option(
        "--level", type=click.Choice([level.value for level in Level]), default=Level.OP.value, show_default=True,
        help="What to record: every op, every module call, or only the state at the end of each step.",
    ),
    "steps": click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End each run after N steps."),
    "window": click.option(
        "--from-step", "window", type=click.IntRange(min=1), metavar="N",
        help="Record ops from step N on; before that, only a ledger of the steps (PyTorch).",
    ),
    "state_every": click.option(
        "--state-every", type=click.IntRange(min=1), default=STATE_EVERY, show_default=True, metavar="N",
        help="In a ledger, digest gradients and losses at each step, but parameters, buffers and optimizer state "
            "only at every Nth (PyTorch).",
    ),
    "max_disk": click.option(
        "--max-disk", type=Size(), metavar="SIZE",
        help="Maximum size of each process's trace: record keeps the newest ops, other commands stop recording.",
    ),
    "paranoid": click.option(
        "--paranoid", is_flag=True,
        help="Also digest inputs that recorded ops produced, to catch writes to their memory from outside.",
    ),
    "invariants": click.option(
        "--invariants", is_flag=True,
        help="Mark what must agree within the run, for `compare --invariants` (PyTorch).",
    ),
    "values": click.option(
        "--values", type=click.IntRange(min=1), metavar="N",
        help="Keep up to N elements of each tensor, so that `compare` can say how far apart values are; 64 is plenty.",
    ),
}  # fmt: skip
"""Options by the field of `RunSpec` that each sets."""


def recording_options(*, without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options for the recorder, which are passed together as `spec`.

    Args:
        without: Fields of `RunSpec` whose options the command lacks.
    """
    names = [name for name in _RECORDING_OPTIONS if name not in without]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_spec(*args: Any, **options: Any) -> Any:
            spec = RunSpec(**{name: options.pop(name) for name in names})
            if spec.window is not None and spec.level != Level.OP:
                raise click.UsageError(
                    f"--from-step says from which step on ops are recorded, and --level {spec.level} records none. Leave one of "
                    "them out."
                )
            if spec.window is not None and spec.steps is not None and spec.window >= spec.steps:
                raise click.UsageError(
                    f"Steps are counted from 0, so --steps {spec.steps} ends before step {spec.window} begins, and --from-step "
                    f"{spec.window} would record no op. Give a smaller --from-step or a larger --steps."
                )
            return function(*args, spec=spec, **options)

        command: Callable[..., Any] = with_spec
        for name in reversed(names):
            command = _RECORDING_OPTIONS[name](command)
        return command

    return decorate


failure_option = click.option(
    "--allow-failure", is_flag=True, help="Report equal runs as the same even if they failed."
)


class OutputFile(click.Path):
    """A file to be written; a value that looks like an option is taken for a missing file name."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path`."""
        if str(value).startswith("-"):
            self.fail(f"expected a file path, got {value!r}. For a file of that name, give './{value}'.", param, ctx)
        return super().convert(value, param, ctx)


def file_option(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option for a file to be written, which is passed as `NAME_file`."""
    return click.option(f"--{name}", f"{name}_file", type=OutputFile(), metavar="FILE", help=text)


html_option = file_option("html", "Write the report as a single HTML page.")
junit_option = file_option("junit", "Write the report as JUnit XML, for continuous integration.")
sarif_option = file_option("sarif", "Write the causes and fixes as SARIF, for code scanning.")
code_quality_option = click.option(
    "--code-quality",
    "code_quality_file",
    type=OutputFile(),
    metavar="FILE",
    help="Write the causes as GitLab's code quality report.",
)
annotate_option = click.option(
    "--annotate", is_flag=True, help="Print annotations for the affected lines, for GitHub or an editor."
)

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Print every detail: ops, values, evidence, experiments, blind spots."
)


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for files, annotations and details, which are passed together as `reports`."""

    @wraps(function)
    def with_reports(
        *args: Any,
        json_file: Path | None,
        html_file: Path | None,
        junit_file: Path | None,
        sarif_file: Path | None,
        code_quality_file: Path | None,
        annotate: bool,
        verbose: bool,
        **options: Any,
    ) -> Any:
        reports = Reports(json_file, html_file, junit_file, annotate, verbose, sarif_file, code_quality_file)
        return function(*args, reports=reports, **options)

    json_option = file_option("json", "Write the report as JSON.")
    listed = (
        json_option,
        html_option,
        junit_option,
        sarif_option,
        code_quality_option,
        annotate_option,
        verbose_option,
    )
    command: Callable[..., Any] = with_reports
    for option in reversed(listed):
        command = option(command)
    return command


def verdict_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--strict`, `--allow-failure`, and the options for reports."""
    strict = click.option("--strict", is_flag=True, help="Also count differences that nothing reads.")
    return strict(failure_option(report_options(function)))


_FOR_EACH_RANK = ("run", "doctor")
"""Commands that make no recording, so that each rank may be started by its own."""


_STARTED_BY = (
    ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
    ("PMI_RANK", "PMI_SIZE", "mpirun"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
)
"""Launchers of ranks: a variable that only its processes have, the variable with their number, and the launcher's command."""


def _require_single(context: click.Context, program: tuple[str, ...]) -> None:
    """Refuse to make runs in each of several ranks: they would meet the other ranks' runs, and write to the same folders."""
    if context.info_name in _FOR_EACH_RANK or context.params.get("part") is not None:
        return
    for mark, count, launcher in _STARTED_BY:
        processes = os.environ.get(count, "1")
        if mark in os.environ and processes != "1":
            raise click.UsageError(
                f"{launcher} started this command in each of {processes} processes, and each would make runs of its own, so nothing was run. "
                f"Start {launcher} with it instead: {context.command_path} ... -- {launcher} ... {shlex.join(_started_by(launcher, program))}\n"
                f"If the processes have nothing to do with one another, unset {mark} for this command."
            )


def _started_by(launcher: str, program: Sequence[str]) -> list[str]:
    """Return a program's words as a launcher takes them: `torchrun` takes a script, the others a command."""
    is_python = re.match("python[0-9.]*$", os.path.basename(program[0])) is not None
    if launcher == "torchrun":
        return list(program[is_python:])
    return ["python", *program] if program[0].endswith(".py") else list(program)


def _as_command(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Prepend `python` to a Python script that was given without it, and say so.

    Raises:
        click.UsageError: A launcher of ranks started this command in several processes, each of which would make runs.
    """
    if context.resilient_parsing or not value:
        return value
    _require_single(context, value)
    if not value[0].endswith(".py"):
        return value
    from determinism.launch.interpreter import with_python

    command = tuple(with_python(value, os.environ))
    if command != value:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        text = legible(f"determinism: Running the script as: {shlex.join(command[:2])}", encoding)
        with suppress(OSError, ValueError, AttributeError):
            click.echo(text, err=True)
    return command


program_argument = click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...", callback=_as_command
)
optional_program_argument = click.argument(
    "program", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", callback=_as_command
)


def enabling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--warn-only`, `--threads` and `--precision`."""
    warn_only = click.option(
        "--warn-only", is_flag=True, help="Let ops that cannot be deterministic warn instead of raising."
    )
    threads = click.option(
        "--threads", type=click.IntRange(min=1), metavar="N", help="Number of threads that compute on the CPU."
    )
    precision = click.option("--precision", type=click.Choice(PRECISIONS), help="Precision of float32 matrix products.")
    return warn_only(threads(precision(function)))

"""Options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from determinism.settings.request import PRECISIONS
from determinism.types import Level

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

PROGRAM_SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Everything from the program's name on belongs to the program."""


class Size(click.ParamType):  # type: ignore[type-arg]  # older versions of click have no type argument
    """A number of bytes, such as `500M` or `2GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the text."""
        if isinstance(value, int):
            return value
        text = str(value).strip().lower().removesuffix("b")
        digits = text.rstrip("kmgti")
        try:
            size = int(float(digits) * _UNITS[text[len(digits) :]])
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is no size. Write a number of bytes such as 500M, 2G or 2GiB.", param, ctx)
        if size <= 0:
            self.fail(f"{value!r} leaves no room. Give a size above 0.", param, ctx)
        return size


def recording_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--level`, `--steps` and `--max-disk`."""
    level = click.option(
        "--level", type=click.Choice([level.value for level in Level]), default=Level.OP.value, show_default=True,
        help="How much is recorded: every op, every module call, or what is held at the end of each step.",
    )  # fmt: skip
    steps = click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End each run after N steps.")
    max_disk = click.option(
        "--max-disk", type=Size(), metavar="SIZE", help="Stop recording when a trace takes this much."
    )
    return level(steps(max_disk(function)))


failure_option = click.option(
    "--allow-failure", is_flag=True, help="Equal runs that failed in the same way are the same."
)
json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report as JSON.",
)


def verdict_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--strict`, `--allow-failure` and `--json`."""
    strict = click.option("--strict", is_flag=True, help="Differences that nothing reads count too.")
    return strict(failure_option(json_option(function)))


program_argument = click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")


def enabling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--warn-only`, `--threads` and `--precision`."""
    warn_only = click.option(
        "--warn-only", is_flag=True, help="Ops that cannot be deterministic warn instead of raising."
    )
    threads = click.option(
        "--threads", type=click.IntRange(min=1), metavar="N", help="How many threads compute on the CPU."
    )
    precision = click.option(
        "--precision", type=click.Choice(PRECISIONS), help="How exact float32 matrix products are."
    )
    return warn_only(threads(precision(function)))

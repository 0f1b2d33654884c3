"""Write the output of `--help` into `docs/command-line.md`: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from determinism.__main__ import command

COMMAND = command()
PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
BLOCK = re.compile(
    r"(?P<head>^## `determinism(?: (?P<name>[a-z -]+))?`\n.*?```text\n)(?P<help>.*?)(?P<end>^```$)",
    re.DOTALL | re.MULTILINE,
)


def help_text(name: str | None) -> str:
    """The output of `determinism NAME --help`; of `determinism --help` for None."""
    settings = {"terminal_width": 100, "max_content_width": 100, "help_option_names": ["-h", "--help"]}
    parent = click.Context(COMMAND, info_name="determinism", **settings)
    if name is None:
        return COMMAND.get_help(parent) + "\n"
    subcommand: click.Command = COMMAND
    for word in name.split():
        assert isinstance(subcommand, click.Group)
        subcommand = subcommand.commands[word]
        parent = click.Context(subcommand, parent=parent, info_name=word, **settings)
    return subcommand.get_help(parent) + "\n"


def names(group: click.Group = COMMAND, before: str = "") -> list[str]:
    """Every subcommand, including those of groups."""
    found: list[str] = []
    for name, subcommand in group.commands.items():
        found.append(f"{before}{name}")
        if isinstance(subcommand, click.Group):
            found += names(subcommand, f"{before}{name} ")
    return found


def written(page: str) -> str:
    """The page with the blocks as they should be."""
    return BLOCK.sub(lambda match: match["head"] + help_text(match["name"]) + match["end"], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

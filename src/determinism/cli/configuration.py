"""Options from pyproject.toml, `[tool.determinism]`, and what `--show-config` prints of them.

    [tool.determinism]          # for every subcommand that has the option
    level = "op"

    [tool.determinism.check]    # for this one; `[tool.determinism.golden.create]` for one in a group
    steps = 20
    json = "report.json"

From the current folder upwards, the nearest pyproject.toml with such a table applies. Its paths are relative to its own
folder. The command line takes precedence.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

TOOL = "determinism"
_FILE = "pyproject.toml"
_SHOW = "show_config"


def _option_name(option: click.Option) -> str:
    """Return the name of the option in the file: its first long name, without dashes."""
    return next(name for name in option.opts if name.startswith("--"))[2:]


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a subcommand that the file may set, by their names in the file."""
    return {
        _option_name(parameter): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name != _SHOW
    }


def subcommands(commands: Mapping[str, click.Command]) -> dict[str, click.Command]:
    """Return all subcommands, including those in groups, by the names of their tables, such as `golden.create`."""
    found: dict[str, click.Command] = {}
    for name, command in commands.items():
        if isinstance(command, click.Group):
            found.update({f"{name}.{inner}": one for inner, one in subcommands(command.commands).items()})
        else:
            found[name] = command
    return found


@dataclass(frozen=True)
class Configuration:
    """The tables of one pyproject.toml, checked against the subcommands."""

    file: Path
    tables: Mapping[str, Mapping[str, Any]]
    """Tables by subcommand; the table for all subcommands has an empty name."""

    def defaults(self, name: str, command: click.Command) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the configured defaults of a subcommand.

        Returns:
            Values by parameter name, and the table that each is from.

        Raises:
            click.UsageError: A value does not fit its option.
        """
        values: dict[str, Any] = {}
        sections: dict[str, str] = {}
        for table, section in (("", f"[tool.{TOOL}]"), (name, f"[tool.{TOOL}.{name}]")):
            for key, value in self.tables.get(table, {}).items():
                option = options_of(command).get(key)
                if option is None or option.name is None:
                    continue
                # In the common table, a name may be a switch of one subcommand and take a value in another.
                if table or option.is_flag == isinstance(value, bool):
                    values[option.name] = self._converted(option, key, value, section)
                    sections[option.name] = section
        return values, sections

    def _converted(self, option: click.Option, key: str, value: Any, section: str) -> Any:
        """Convert a TOML value to the form that its option takes."""
        place = f"{self.file}, {section}: {key} = {json.dumps(value, default=str)}"
        if isinstance(value, dict) and _takes_pairs(option) and all(map(_is_names, value.values())):
            value = [f"{one}:{','.join([names] if isinstance(names, str) else names)}" for one, names in value.items()]
        if option.is_flag or isinstance(option.type, click.types.BoolParamType):
            if not isinstance(value, bool):
                raise click.UsageError(f"{place} is neither true nor false. Write {key} = true or {key} = false.")
            return value
        if isinstance(value, bool | dict) or (
            isinstance(value, list) and not all(isinstance(one, str) for one in value)
        ):
            raise click.UsageError(
                f"{place} is not valid for this option. Give what --{key} takes on the command line."
            )
        if isinstance(option.type, click.Path) and isinstance(value, str):
            value = str(self.file.parent / value)
        elif isinstance(value, list) and not option.multiple:
            value = ",".join(value)
        elif option.multiple and not isinstance(value, list):
            value = [value]
        try:
            option.type_cast_value(click.Context(click.Command(TOOL)), value)
        except click.BadParameter as error:
            raise click.UsageError(f"{place} is not valid for this option: {error.message}") from None
        return value


def read_configuration(folder: Path, commands: Mapping[str, click.Command]) -> Configuration | None:
    """Read the tables of the nearest pyproject.toml that has any; return None if there is none.

    Args:
        folder: Where the upward search begins.
        commands: The result of `subcommands`.

    Raises:
        click.UsageError: A table, an option or the file itself is invalid.
    """
    for place in (folder, *folder.parents):
        file = place / _FILE
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if f"tool.{TOOL}" not in text:
            # Not parsed: another project's broken file must not prevent this check.
            continue
        import tomllib

        try:
            found = tomllib.loads(text).get("tool", {}).get(TOOL)
        except tomllib.TOMLDecodeError as error:
            raise click.UsageError(
                f"{file} is not valid TOML ({error}), so its [tool.{TOOL}] cannot be read."
            ) from None
        if found is None:
            continue
        if not isinstance(found, dict):
            text = json.dumps(found, default=str)
            raise click.UsageError(
                f"{file}: tool.{TOOL} = {text} is not a table. Write [tool.{TOOL}] and a line for each option."
            )
        return Configuration(file, dict(_tables(file, found, commands)))
    return None


def _tables(
    file: Path, found: Mapping[str, Any], commands: Mapping[str, click.Command]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    every: dict[str, set[bool]] = {}
    for command in commands.values():
        for name, option in options_of(command).items():
            every.setdefault(name, set()).add(option.is_flag)
    common = {key: value for key, value in found.items() if not isinstance(value, dict)}
    for key, value in common.items():
        if key not in every:
            raise _unknown(file, f"[tool.{TOOL}]: {key}", key, sorted(every), "an option of a subcommand")
        if isinstance(value, bool) not in every[key]:
            is_switch = every[key] == {True}
            form = "is a switch, so write true or false" if is_switch else "takes a value, not true or false"
            text = json.dumps(value, default=str)
            raise click.UsageError(f"{file}, [tool.{TOOL}]: {key} = {text} is not valid: --{key} {form}.")
    yield "", common
    for path, table in _flat("", found, commands):
        if path not in commands:
            if path in every and not any(name.startswith(f"{path}.") for name in commands):
                owner = next(name for name, command in commands.items() if path in options_of(command))
                raise click.UsageError(
                    f"{file}, [tool.{TOOL}.{path}] is not a subcommand; {path} is an option of one. "
                    f"Write [tool.{TOOL}.{owner}.{path}]."
                )
            raise _unknown(file, f"[tool.{TOOL}.{path}]", path, list(commands), "a subcommand")
        known = options_of(commands[path])
        for key in table:
            if key not in known:
                what = f"an option of `{TOOL} {path.replace('.', ' ')}`"
                raise _unknown(file, f"[tool.{TOOL}.{path}]: {key}", key, list(known), what)
        yield path, table


def _flat(
    path: str, found: Mapping[str, Any], commands: Mapping[str, click.Command]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables within a table, each with its path; a table of nothing but tables is only part of their paths.

    A table that is the value of an option stays in the table of its subcommand.
    """
    for name, value in found.items():
        if isinstance(value, dict):
            inner = f"{path}.{name}" if path else name
            options = options_of(commands[inner]) if inner in commands else {}
            own = {key: one for key, one in value.items() if key in options or not isinstance(one, dict)}
            if own or not value:
                yield inner, own
            yield from _flat(inner, {key: one for key, one in value.items() if key not in own}, commands)


def _takes_pairs(option: click.Option) -> bool:
    """Whether the option takes `NAME:VALUE,...` repeatedly, which may be written as a table in TOML."""
    return option.multiple and ":" in str(option.metavar)


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def _unknown(file: Path, place: str, name: str, known: list[str], what: str) -> click.UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
    return click.UsageError(f"{file}, {place} is not {what}. {hint}")


class ConfiguredCommand(click.Command):
    """A subcommand that takes defaults from pyproject.toml and shows the resulting options with `--show-config`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            click.Option(
                ["--show-config"], is_flag=True, help="Print the value and the origin of every option, and exit."
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, with defaults from the file."""
        asked, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if not asked.get(_SHOW):
            return super().parse_args(ctx, args)
        # Settings can be shown without a program.
        shown = copy.copy(self)
        shown.params = [_not_required(parameter) for parameter in self.params]
        return click.Command.parse_args(shown, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, or show its settings."""
        if ctx.params.pop(_SHOW):
            click.echo("\n".join(_shown(self, ctx)))
            return None
        return super().invoke(ctx)


def _not_required(parameter: click.Parameter) -> click.Parameter:
    parameter = copy.copy(parameter)
    parameter.required = False
    return parameter


def _shown(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the settings as lines of valid TOML, each with its origin."""
    found: tuple[Configuration | None, dict[str, dict[str, str]]] = context.obj or (None, {})
    path = context.command_path.partition(" ")[2].replace(" ", ".")
    configuration, sections = found[0], found[1].get(path, {})
    yield f"# {configuration.file}" if configuration else f"# No {_FILE} here or above has a table [tool.{TOOL}]."
    yield f"[tool.{TOOL}.{path}]"
    for key, option in options_of(command).items():
        assert option.name is not None
        given = context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        origin = "command line" if given else sections.get(option.name, "default")
        text = _toml(context.params.get(option.name))
        yield f"# {key} is not set" if text is None else f"{f'{key} = {text}':<34}  # {origin}"


def _toml(value: Any) -> str | None:
    """Format a value as TOML; None if it is not set."""
    if value is None or value == ():
        return None
    if isinstance(value, tuple | list):
        return f"[{', '.join(str(_toml(one)) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    # A JSON string is also a TOML string.
    return json.dumps(str(value))

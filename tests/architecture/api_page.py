"""Write the reference of the public API, `docs/api.md`, from the docstrings: `make docs`."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import determinism

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_HEAD = """# API

Everything that `import determinism` gives. Importing it loads no framework, and neither NumPy nor pyarrow; each name is loaded when it is first used.
Written from the docstrings by `make docs`; a test runs the examples.
"""
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Example):$")
_ITEM = re.compile(r"^(\*{0,2}[\w.]+): (.*)$", re.DOTALL)


def written() -> str:
    """The page as it should be."""
    public = {f"determinism.{name}": getattr(determinism, name) for name in determinism.__all__ if name != "state"}
    state = {f"determinism.state.{name}": getattr(determinism.state, name) for name in determinism.state.__all__}
    functions = {name: thing for name, thing in public.items() if inspect.isfunction(thing)}
    classes = {name: thing for name, thing in public.items() if not inspect.isfunction(thing)}
    parts = [_HEAD, "## Functions\n", *_entries(functions)]
    parts += [
        "## State\n",
        f"{_plain((inspect.getdoc(determinism.state) or '').partition(chr(10))[0])}\n",
        *_entries(state),
    ]
    parts += ["## What is returned\n", *_entries(classes)]
    return "\n".join(parts)


def _entries(things: dict[str, Any]) -> Iterator[str]:
    for name in sorted(things, key=lambda name: name.lower()):
        thing = things[name]
        yield f"### `{name}`\n"
        if inspect.isfunction(thing):
            yield f"```python\n{_signature(thing, name.removeprefix('determinism.'))}\n```\n"
        yield from _documentation(inspect.getdoc(thing) or "")
        if inspect.isclass(thing):
            yield from _members(thing)


def _signature(function: Any, name: str) -> str:
    """The signature of a function, from its source."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    gives = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{name}({ast.unparse(node.args)}){gives}"


def _documentation(text: str) -> Iterator[str]:
    """A docstring as Markdown."""
    for title, lines in _sections(text):
        body = textwrap.dedent("\n".join(lines)).strip("\n")
        if title == "Example":
            yield f"```pycon\n{body}\n```\n"
        elif title in ("Returns", "Yields"):
            yield f"{title}: {_plain(body)}\n"
        elif title:
            yield f"{title}:\n\n{_list(body)}"
        elif body:
            yield f"{_plain(body)}\n"


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    title, lines = "", list[str]()
    for line in text.split("\n"):
        if match := _SECTION.match(line):
            yield title, lines
            title, lines = match[1], []
        else:
            lines.append(line)
    yield title, lines


def _list(body: str) -> str:
    items: list[str] = []
    for line in body.split("\n"):
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line)
    return "".join(f"- `{match[1]}`: {match[2]}\n" if (match := _ITEM.match(item)) else f"- {item}\n" for item in items)


def _plain(text: str) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _members(kind: type) -> Iterator[str]:
    """The values of an enumeration; otherwise fields, properties and methods, each with its first sentence."""
    if issubclass(kind, enum.Enum):
        yield "".join(f"- `{member.value}`\n" for member in kind)
        return
    rows = [f"- `{name}`: {text}\n" for name, text in _fields(kind)]
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        shown = name if isinstance(member, property) else f"{name}()"
        rows.append(f"- `{shown}`: {_plain((inspect.getdoc(function) or '').partition(chr(10) * 2)[0])}\n")
    if rows:
        yield "".join(rows)


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Fields with their types, and the texts below them."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = f". {_plain(str(following.value.value))}"
        if not statement.target.id.startswith("_"):
            yield statement.target.id, f"`{ast.unparse(statement.annotation)}`{text}"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

"""Write the knowledge pages: ops by framework, settings, history, myths. `make facts`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from determinism.knowledge.entries import DATA, Op, Source, Status, op_files, ops_of
from determinism.knowledge.query import Framework, framework_named
from tools.documented_facts import history, myths, settings

DOCS = Path(__file__).parents[2] / "docs"
MADE = "<!-- Made by `make facts` from src/determinism/knowledge/data. Edit the data, not this page. -->\n"
COLUMNS = (
    "versions",
    "device",
    "direction",
    "when",
    "default",
    "deterministic mode",
    "basis",
    "what to do, and notes",
    "sources",
)
_NUMBERED = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)(.*)")
_COMMIT = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})(.*)")
_ADDRESS = re.compile(r"(https://\S+?)(,? .*)?")


def cell(text: str) -> str:
    """A text, escaped for a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def code(text: str) -> str:
    """A name, as code."""
    return f"`{text}`"


def row(cells: Iterable[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"


def table(heads: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """A table with an empty line after it."""
    return [row(heads), row(["---"] * len(heads)), *map(row, rows), ""]


def source_text(source: Source) -> str:
    """A source, with a link if it has an address."""
    date = f" ({source.date})" if source.date else ""
    part = {"issue": "issues", "pull request": "pull"}.get(source.kind)
    if part and (match := _NUMBERED.fullmatch(source.reference)):
        return f"[{match[1]}#{match[2]}](https://github.com/{match[1]}/{part}/{match[2]}){cell(match[3])}{date}"
    if source.kind == "commit" and (match := _COMMIT.fullmatch(source.reference)):
        return f"[{match[1]}@{match[2][:7]}](https://github.com/{match[1]}/commit/{match[2]}){cell(match[3])}{date}"
    if match := _ADDRESS.fullmatch(source.reference):
        return f"[{source.kind}]({match[1]}){cell(match[2] or '')}{date}"
    return cell(f"{source.kind}: {source.reference}{date}")


def status_row(status: Status, framework: str) -> list[str]:
    """The cells of a status."""
    of = "" if status.framework == framework else f"{framework_named(status.framework).title} "
    when = "; ".join(part for part in (status.dtype, status.condition) if part)
    advice = " ".join(part if part.endswith(".") else f"{part}." for part in (status.solution, status.note) if part)
    return [
        cell(of + str(status.versions)),
        status.device,
        status.direction,
        cell(when) or "always",
        status.default or "not said",
        status.deterministic or "not said",
        status.basis,
        cell(advice),
        "; ".join(map(source_text, status.sources)),
    ]


def op_section(op: Op, docs: str = "") -> Iterator[str]:
    """The section on an op; `docs` is the relative path from its page to the folder of the other pages."""
    yield f"### {code(op.name)}\n"
    yield f"{cell(op.summary)}\n"
    if op.names:
        yield f"Also: {', '.join(map(code, op.names))}.\n"
    if op.patches:
        yield f"[`determinism.patch()`]({docs}patches.md) replaces it: {', '.join(map(code, op.patches))}.\n"
    if op.kernels or op.alerts:
        yield f"Known in messages as: {', '.join(map(code, (*op.kernels, *op.alerts)))}.\n"
    yield from table(COLUMNS, [status_row(status, op.framework) for status in op.statuses])


def modes(framework: Framework) -> Iterator[str]:
    """Deterministic mode in each version, and the versions that a framework is built on."""
    if framework.modes:
        rows = [
            [cell(str(mode.versions)), cell(mode.how), cell(mode.note or ""), "; ".join(map(source_text, mode.sources))]
            for mode in framework.modes
        ]
        yield f"## Deterministic mode of {framework.title}\n"
        yield from table(("versions", "how", "notes", "sources"), rows)
    if framework.bases:
        yield f"## What {framework.title} is built on\n"
        rows = [[str(base.versions), base.version, base.version_tf1 or ""] for base in framework.bases]
        yield from table(("image", "TensorFlow", "variant with the API of version 1"), rows)


def title_of(file: str) -> str:
    """The title of a family of ops: the comment at the head of its file."""
    return (DATA / file).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").rstrip(".")


def ops_page(title: str, folder: str, frameworks: tuple[str, ...]) -> str:
    """The page of the ops in one folder."""
    lines = [f"# {title}\n", MADE, "What the words mean: [what is known of ops](knowledge.md).\n"]
    for name in frameworks:
        lines += modes(framework_named(name))
    for file in op_files():
        if file.startswith(f"{folder}/"):
            lines += [f"## {title_of(file)}\n", *(line for op in ops_of(file) for line in op_section(op))]
    return finished(lines)


def settings_page() -> str:
    """The page of settings."""
    lines = ["# Settings that have to do with determinism\n", MADE]
    for name, of_framework in groupby(sorted(settings(), key=lambda one: one.framework), key=lambda one: one.framework):
        lines.append(f"## {framework_named(name).title}\n")
        rows = [
            [code(one.name), one.kind, cell(str(one.versions)), cell(one.values or ""), cell(" ".join(filter(None, (one.effect, one.note)))), "; ".join(map(source_text, one.sources))]
            for one in of_framework
        ]  # fmt: skip
        lines += table(("name", "kind", "versions", "values", "what it does", "sources"), rows)
    return finished(lines)


def history_page() -> str:
    """The page of issues, pull requests and commits."""
    lines = ["# Issues, pull requests and commits\n", MADE]
    lines.append(
        "States are as of the month in the last column. Pull requests of PyTorch are closed by a bot when they go in.\n"
    )
    for repository, events in groupby(
        sorted(history(), key=lambda one: re.split("[#@]", one.reference)[0]),
        key=lambda one: re.split("[#@]", one.reference)[0],
    ):
        lines.append(f"## {repository}\n")
        rows = [
            [f"[{re.split('[#@]', one.reference)[1][:7]}]({one.address})", one.kind, cell(one.title), one.state, one.opened or "", one.merged or "", one.version or "", cell(one.note or ""), one.as_of]
            for one in events
        ]  # fmt: skip
        lines += table(
            ("number", "kind", "title", "state", "opened", "merged", "first release", "notes", "as of"), rows
        )
    return finished(lines)


def myths_page() -> str:
    """The page of myths."""
    lines = ["# Myths about determinism\n", MADE]
    for myth in myths():
        lines += [
            f'## "{cell(myth.claim)}"\n',
            f"{cell(myth.fact)}\n",
            f"Sources: {'; '.join(map(source_text, myth.sources))}.\n",
        ]
    return finished(lines)


def finished(lines: list[str]) -> str:
    """The text of a page."""
    return "\n".join(lines).rstrip() + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "ops-pytorch.md": lambda: ops_page("Determinism of PyTorch's ops", "torch", ("torch",)),
    "ops-tensorflow.md": lambda: ops_page(
        "Determinism of TensorFlow's ops", "tensorflow", ("tensorflow", "ngc-tensorflow")
    ),
    "ops-jax.md": lambda: ops_page("Determinism of JAX's ops", "jax", ("jax",)),
    "ops-libraries.md": lambda: ops_page("Determinism of libraries", "libraries", ()),
    "ops-python.md": lambda: ops_page("Determinism of Python and NumPy", "python", ()),
    "known-settings.md": settings_page,
    "history.md": history_page,
    "myths.md": myths_page,
}

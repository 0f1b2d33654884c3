"""The pages under docs/ and the README agree with the code."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from determinism.__main__ import command
from determinism.diagnose.experiments import causes
from determinism.factors.catalog import FACTORS
from determinism.report.document import SCHEMA, SCHEMA_FILE
from determinism.trace import schema
from determinism.types import Access, Kind, Level, Phase, Role
from tests.architecture import command_line_page, formulas_page, knowledge_pages, patches_page, settings_page
from tools.package_readme import PackageReadme, without_relative_links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "decisions").glob("*.md"))]


def text_of(name: str) -> str:
    """A page under docs/."""
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Every call of the command that a page shows."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8"), "(?:console|sh)"):
            for line in block.splitlines():
                words = line.removeprefix("$ ")
                if words.startswith(("determinism ", ".venv/bin/determinism ")):
                    found.append((page.name, words.partition(" #")[0].rstrip()))
    return found


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_the_pages_show_commands() -> None:
    assert len(commands()) >= 6


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_shown_is_valid(page: str, line: str) -> None:
    name, *arguments = shlex.split(line)[1:]

    if name in ("--help", "--version"):
        return
    whole = command()
    subcommand = whole.commands[name]
    parent = click.Context(whole, info_name="determinism", **whole.context_settings)
    if arguments != ["--help"]:
        subcommand.make_context(name, arguments, parent=parent)


def test_command_line_page_is_current() -> None:
    page = text_of("command-line.md")

    assert command_line_page.written(page) == page, "make docs"
    shown = {match["name"] for match in command_line_page.BLOCK.finditer(page)}
    assert shown == {None, *command_line_page.names()}


def test_formulas_page_is_current() -> None:
    page = text_of("formulas.md")

    assert formulas_page.written(page) == page, "make docs"


def test_patches_page_is_current() -> None:
    page = text_of(patches_page.PAGE.name)
    assert patches_page.MARK in page
    assert patches_page.written(page) == page, "make docs"


def test_settings_page_is_current() -> None:
    page = text_of("settings.md")

    assert settings_page.BLOCK.search(page)
    assert settings_page.written(page) == page, "make docs"


@pytest.mark.parametrize("name", knowledge_pages.PAGES)
def test_knowledge_pages_are_current(name: str) -> None:
    assert knowledge_pages.PAGES[name]() == text_of(name), "make facts"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_targets_of_links_exist(page: Path) -> None:
    # In code, brackets mean something else.
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_contain_no_em_dashes(page: Path) -> None:
    assert "\N{EM DASH}" not in page.read_text(encoding="utf-8")


def test_trace_format_page_names_every_file_table_and_column() -> None:
    text = text_of("trace-format.md")
    files = [value for name, value in vars(schema).items() if name.endswith(("_FILE", "_FOLDER"))]
    columns = [column.name for column in schema.RECORD_COLUMNS]
    for group, children in schema.CHILD_COLUMNS.items():
        columns += [group, *(f"{group}.{column.name}" for column in children)]
    names = [*files, *columns, schema.FORMAT, schema.STEP_OP, schema.END_OP]

    assert len(files) >= 6
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("words", [schema.Table, schema.Meaning, Phase, Role, Access], ids=lambda words: words.__name__)
def test_trace_format_page_has_every_number(words: type[schema.Table | schema.Meaning | Phase | Role | Access]) -> None:
    text = text_of("trace-format.md")
    assert [word for word in words if f"| {word.value} | `{word.name.lower()}` |" not in text] == []


def test_trace_format_page_has_every_version() -> None:
    text = text_of("trace-format.md")
    assert [n for n in range(1, schema.VERSION + 1) if f"| {n} |" not in text.partition("## Versions")[2]] == []


def test_report_page_names_every_key() -> None:
    text = text_of("report.md")
    document = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    keys = {*document["properties"]}
    for definition in document["$defs"].values():
        keys |= {*definition.get("properties", {})}

    assert SCHEMA in text
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_kinds_page_has_a_section_for_each_kind() -> None:
    assert re.findall(r"^### `([a-z]+)`$", text_of("kinds.md"), re.MULTILINE) == [*Kind]


def test_levels_are_described() -> None:
    assert [level for level in Level if f"`{level}`" not in text_of("command-line.md")] == []


def test_causes_page_names_every_cause_and_factor() -> None:
    text = text_of("causes.md")
    assert [name for name in (*causes(), *FACTORS) if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "wanted",
    [
        "https://ngc.nvidia.com/catalog/containers/nvidia:tensorflow",
        "https://www.tensorflow.org/install/gpu",
        "https://bit.ly/two-sigma-determinism",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#atomic-functions",
        "guaranteed-to-be-the-same-inside-a-single-run#comment91376212_52213325",
        "Duncan Riach",
        "William Zhang",
    ],
)
def test_the_links_and_credits_of_nvidias_pages_are_kept(wanted: str) -> None:
    assert wanted in text_of("origins.md") + text_of("tensorflow-determinism.md")


def test_the_readme_names_the_requirements_of_its_example() -> None:
    distributions = {"torch": "PyTorch", "numpy": "NumPy"}
    tree = ast.parse((ROOT / "examples" / "digits" / "train.py").read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    needed = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    before_the_first_command = README.read_text(encoding="utf-8").partition("$ determinism check")[0]

    assert needed == set(distributions)
    assert all(name in before_the_first_command for name in distributions.values())


def test_the_readme_for_package_indexes_has_no_relative_links() -> None:
    metadata: dict[str, Any] = {}
    PackageReadme(str(ROOT), {}).update(metadata)
    described = metadata["readme"]["text"]

    assert re.findall(r"\]\((?!https?://)[^)]*\)", README.read_text(encoding="utf-8")), "there are links to leave out"
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", described)
    assert "[PyTorch](https://pytorch.org)" in without_relative_links(
        "[PyTorch](https://pytorch.org), [more](docs/more.md)"
    )
    assert described.count("\n") == README.read_text(encoding="utf-8").count("\n")

"""The data conform to their schema and do not contradict themselves, and their index is current."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from determinism.knowledge.entries import (
    DATA,
    INDEX_FILE,
    OP_FOLDERS,
    SourceKind,
    Status,
    index_text,
    known_audits,
    op_files,
    ops_of,
    source_of,
)
from determinism.knowledge.query import framework_named, framework_names
from tests.architecture.knowledge_checks import problems, violations

FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.toml"))


def all_statuses() -> list[tuple[str, str, Status]]:
    """Every status, with the file and the op it belongs to."""
    return [(name, op.name, one) for name in op_files() for op in ops_of(name) for one in op.statuses]


def test_there_are_data() -> None:
    assert len(all_statuses()) > 500
    assert {name.split("/")[0] for name in op_files()} == set(OP_FOLDERS)


def test_the_data_are_sound() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"since": 1.7}, "1.7 is not of type 'string'"),
        ({"sources": []}, "[] should be non-empty"),
        ({"sources": ["somewhere"]}, "does not match"),
        ({"sources": ["measurement: seen here"]}, "is not valid under any of the given schemas"),
        ({"verdict": "deterministic"}, "Additional properties are not allowed"),
        ({"default": "sometimes"}, "is not one of"),
        ({"device": "gpu0"}, "is not one of"),
        ({"id": "Not An Id"}, "does not match"),
        ({"note": " "}, "does not match"),
    ],
)
def test_the_schema_refuses(change: dict[str, Any], complaint: str) -> None:
    one = {"id": "a", "device": "cpu", "direction": "both", "basis": "observed", "default": "unknown"}
    one = {**one, "sources": ["issue: owner/name#1 (2026-11)"]}
    document = {"framework": "torch", "op": [{"name": "a", "summary": "b", "status": [one]}]}
    assert violations(document, "ops") == []

    document["op"][0]["status"] = [{**one, **change}]
    assert any(complaint in violation for violation in violations(document, "ops"))


GOOD = """\
framework = "torch"

[[op]]
name = "torch.one"
summary = "It adds."

[[op.status]]
id = "torch-one"
since = "1.7"
until = "1.9"
device = "cuda"
direction = "forward"
basis = "documented"
default = "nondeterministic"
sources = ["issue: owner/name#1"]
"""
MORE = GOOD.partition("\n\n[[op.status]]")[2].replace('"torch-one"', '"torch-two"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of data with one good file."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks" / "torch.toml").write_text('id = "torch"\ntitle = "PyTorch"\ndistributions = ["torch"]\n')
    (tmp_path / "torch" / "one.toml").write_text(GOOD)
    assert problems(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            GOOD + "\n[[op.status]]" + MORE,
            ["torch.one: torch-one (>=1.7, <1.9) and torch-two", "End the older one with `until`"],
        ),
        (
            GOOD + "\n[[op.status]]" + MORE.replace("torch-two", "torch-one").replace("cuda", "cpu"),
            ["the id 'torch-one' is given 2 times"],
        ),
        (GOOD.replace('"1.9"', '"1.7"'), ["torch-one holds for no release: >=1.7, <1.7"]),
        (
            GOOD.replace('since = "1.7"', "since = 1.7"),
            ["op > torch.one status > torch-one since", "1.7 is not of type 'string'", "as text"],
        ),
        (GOOD.replace("issue: owner/name#1", "a friend"), ["'a friend' does not match", "`kind: reference (date)`"]),
        (
            GOOD.replace('framework = "torch"', 'framework = "torhc"'),
            ["there is no framework 'torhc'", "Add frameworks/torhc.toml"],
        ),
        (
            GOOD + GOOD.partition("\n")[2].replace("torch-one", "torch-two").replace("cuda", "cpu"),
            ["the op 'torch.one' is listed 2 times"],
        ),
        (GOOD + 'note = "unfinished\n', ["no TOML", "three quotes"]),
        (GOOD + "#\n" * 500, ["Make two families of it"]),
    ],
)
def test_mistakes_are_explained(text: str, parts: list[str], folder: Path) -> None:
    (folder / "torch" / "one.toml").write_text(text)
    (problem,) = problems(folder)
    assert problem.startswith("torch/one.toml: ")
    assert [part for part in parts if part not in problem] == []


def test_a_misplaced_file_is_reported(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "one.toml").write_text(GOOD)
    (problem,) = problems(folder)
    assert "nothing reads this place" in problem


def test_statuses_that_differ_in_any_field_may_apply_to_the_same_release(folder: Path) -> None:
    for key, value in (("device", "cpu"), ("direction", "backward"), ("basis", "observed")):
        lines = [f'{key} = "{value}"' if line.startswith(f"{key} =") else line for line in MORE.splitlines()]
        (folder / "torch" / "one.toml").write_text(GOOD + "\n[[op.status]]" + "\n".join(lines))
        assert problems(folder) == []
    (folder / "torch" / "one.toml").write_text(GOOD + '\n[[op.status]]\ncondition = "else"' + MORE)
    assert problems(folder) == []


def test_every_measurement_has_its_day() -> None:
    measured = [
        source for _, _, one in all_statuses() for source in one.sources if source.kind is SourceKind.MEASUREMENT
    ]
    assert len(measured) > 100
    assert [source.reference for source in measured if source.date is None or len(source.date) != 10] == []


def test_frameworks_are_named_like_their_files() -> None:
    assert [name for name in framework_names() if framework_named(name).identifier != name] == []
    named = {one.framework for _, _, one in all_statuses()} | {ops_of(name)[0].framework for name in op_files()}
    assert named - set(framework_names()) == set()


def test_ranges_of_modes_do_not_overlap() -> None:
    for name in framework_names():
        modes = framework_named(name).modes
        for number, first in enumerate(modes):
            assert not any(first.versions.overlaps(second.versions) for second in modes[number + 1 :]), name


def test_the_index_is_current() -> None:
    assert INDEX_FILE.read_text(encoding="utf-8") == index_text(), "make facts"


def test_sources_are_read() -> None:
    source = source_of("pull request: pytorch/pytorch#101115 (2023-05)")
    assert (source.kind, source.reference, source.date) == ("pull request", "pytorch/pytorch#101115", "2023-05")
    assert source_of("documentation: a page (of two)").date is None
    with pytest.raises(ValueError):
        source_of("hearsay: somebody")


def test_the_data_folder_holds_no_other_kinds_of_files() -> None:
    others = [path.name for path in Path(DATA).rglob("*") if path.is_file() and path.suffix != ".toml"]
    measured = [audit.file_name for audit in known_audits()]
    assert sorted(others) == sorted(["index.json", *measured])


def test_the_example_of_the_page_is_sound(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "contributing-a-fact.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^   ```toml\n(.*?)^   ```$", page, re.DOTALL | re.MULTILINE)
    (folder / "torch" / "two.toml").write_text('framework = "torch"\n\n' + textwrap.dedent(block))
    assert problems(folder) == []

"""Equal names of two runs get equal numbers."""

from __future__ import annotations

from pathlib import Path

from tests.traces import TraceBuilder, layout, opened


def make(folder: Path, sites: list[tuple[str, int]], directory: str = "/work", ops: str = "") -> Path:
    builder = TraceBuilder(folder, environment={"working directory": directory})
    for number, site in enumerate(sites):
        builder.add(
            f"op::{ops[number] if ops else 'a'}", site=site, module=f"layer{number % 2}", arguments=f"n={number % 3}"
        )
    return builder.close()


def same_stacks(first: Path, second: Path) -> list[bool]:
    """Whether the stack of each record has the same number in both runs."""
    _, _, left, right, canonical = opened(first, second)
    mine = canonical.stacks.first[left.columns["stack"]]
    others = canonical.stacks.second[right.columns["stack"]]
    return (mine == others).tolist()[:-1]


def test_names_in_a_different_order(tmp_path: Path) -> None:
    sites = [("/work/a.py", 1), ("/work/a.py", 2), ("/work/b.py", 1)]
    _, _, left, right, canonical = opened(
        make(tmp_path / "1", sites, ops="abc"), make(tmp_path / "2", sites[::-1], ops="cba")
    )
    for name, numbers in (("op", canonical.ops), ("stack", canonical.stacks)):
        mine, others = numbers.first[left.columns[name]][:-1], numbers.second[right.columns[name]][:-1]
        assert mine.tolist() == others[::-1].tolist(), name
        assert len(set(mine.tolist())) == 3


def test_absent_names_stay_absent(tmp_path: Path) -> None:
    folders = []
    for side in range(2):
        builder = TraceBuilder(tmp_path / str(side))
        builder.add("op::a", site=None)
        folders.append(builder.close())
    _, _, left, right, canonical = opened(*folders)
    for name, numbers in (
        ("module", canonical.modules),
        ("arguments", canonical.arguments),
        ("stack", canonical.stacks),
    ):
        assert numbers.first[left.columns[name]][0] == numbers.second[right.columns[name]][0] == -1, name


def test_files_below_the_working_directory_are_relative(tmp_path: Path) -> None:
    first = make(tmp_path / "1", [("/home/a/train.py", 3), ("/usr/lib/x.py", 4)], "/home/a")
    second = make(tmp_path / "2", [("/scratch/b/train.py", 3), ("/usr/lib/x.py", 4)], "/scratch/b")
    assert same_stacks(first, second) == [True, True]


def test_a_different_line_is_a_different_stack(tmp_path: Path) -> None:
    first = make(tmp_path / "1", [("/work/train.py", line) for line in (1, 2, 3, 4)])
    second = make(tmp_path / "2", [("/work/train.py", line) for line in (1, 2, 3, 5)])
    assert same_stacks(first, second) == [True, True, True, False]


def test_lines_are_ignored_if_the_program_was_changed(tmp_path: Path) -> None:
    first = make(tmp_path / "1", [("/work/train.py", line) for line in (1, 2, 3)])
    second = make(tmp_path / "2", [("/work/train.py", line) for line in (11, 12, 13)])
    assert all(same_stacks(first, second))


def test_files_are_ignored_if_they_were_moved(tmp_path: Path) -> None:
    first = make(tmp_path / "1", [("/somewhere/train.py", line) for line in (1, 2, 3)])
    second = make(tmp_path / "2", [("/elsewhere/train.py", line) for line in (1, 2, 3)])
    assert all(same_stacks(first, second))


def test_a_file_that_only_one_run_has_is_matched_by_line_and_function(tmp_path: Path) -> None:
    """Code generated under a random name, among much code that was not."""
    usual = [("/work/train.py", line) for line in range(8)]
    first = make(tmp_path / "1", [*usual, ("/tmp/tmpabc/generated.py", 3)])
    second = make(tmp_path / "2", [*usual, ("/tmp/tmpxyz/generated.py", 3)])
    assert all(same_stacks(first, second))


def test_layouts_match_by_all_their_fields(tmp_path: Path) -> None:
    views = [layout(4), layout(2, 2), layout(4, dtype="int64"), layout(2, offset=1, elements=4), layout(2, elements=4)]
    folders = []
    for side, order in enumerate((views, views[::-1])):
        builder = TraceBuilder(tmp_path / str(side))
        for view in order:
            builder.add("op::a", layouts=[view])
        folders.append(builder.close())
    _, _, left, right, canonical = opened(*folders)
    mine = canonical.layouts.first[left.children["outputs"].columns["layout"]].tolist()
    others = canonical.layouts.second[right.children["outputs"].columns["layout"]].tolist()
    assert mine == others[::-1] and len(set(mine)) == len(views)

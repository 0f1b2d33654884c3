"""Leftovers in the report: prominent with a remedy if the runs differ, a note if they agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from determinism.cli.ending import Reports, conclude
from determinism.comparison.divergence import Fix
from determinism.comparison.result import FileChange, Leftover
from determinism.report.document import document
from tests.builders import make_comparison, make_different, make_frame
from tests.rendered import lines_of, text_of


def left(*names: str, is_copied: bool = True, change: FileChange = FileChange.CREATED) -> list[Leftover]:
    """Leftover files in the working directory."""
    return [Leftover(str(Path.cwd() / name), 1, 2, is_copied, change=change) for name in names]


def test_the_report_of_differing_runs_shows_leftovers_first() -> None:
    lines = lines_of(make_different(leftovers=left("last.pt")))
    assert lines[2].startswith("  leftovers         The runs did not start from the same files: run 2 read last.pt")
    assert "To start them from the same files: --before 'rm -f last.pt', or --fresh-copy." in " ".join(lines)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a b.pt"], "--before 'rm -f '\"'\"'a b.pt'\"'\"''"),
        (["a", "b"], "run 2 read a and b, which run 1 had left: they were created"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more files"),
        (["a", "b", "c", "d"], "--before 'rm -f a b c ...'"),
    ],
)
def test_files_are_named(names: list[str], said: str) -> None:
    assert said in text_of(make_different(leftovers=left(*names)))


def test_a_folder_is_removed_with_its_contents() -> None:
    inside, folder = left("ck/step", "ck")
    text = text_of(make_different(leftovers=[inside, replace(folder, is_folder=True)]))
    assert "To start them from the same files: --before 'rm -rf ck', or --fresh-copy." in text
    assert "run 2 read ck, which run 1 had left: it was created" in text


def test_unnamed_folders_do_not_change_how_files_are_removed() -> None:
    *files, folder = left("a", "b", "c", "d")
    text = text_of(make_different(leftovers=[*files, replace(folder, is_folder=True)]))
    assert "--before 'rm -f a b c ...'" in text


def test_a_copy_is_not_a_remedy_for_files_elsewhere() -> None:
    assert "--fresh-copy" not in text_of(make_different(leftovers=left("x", is_copied=False)))


@pytest.mark.parametrize("change", [FileChange.UNSEEN, FileChange.OVERWRITTEN])
@pytest.mark.parametrize("is_copied", [True, False])
def test_removal_is_only_suggested_for_files_that_a_run_created(change: FileChange, is_copied: bool) -> None:
    text = text_of(make_different(leftovers=left("config.yaml", is_copied=is_copied, change=change)))
    assert "rm -f" not in text
    assert ("--fresh-copy" in text) == is_copied
    assert ("perhaps by another process" in text) == (change is FileChange.UNSEEN)


def test_created_files_are_distinguished_from_others() -> None:
    changes = [*left("config.yaml", change=FileChange.UNSEEN), *left("last.pt")]
    text = text_of(make_different(leftovers=changes))
    assert "--before 'rm -f last.pt', or --fresh-copy" in text
    assert "Also, run 2 read config.yaml, which changed during run 1, perhaps by another process" in text


def test_a_leftover_is_not_removable_by_default() -> None:
    assert Leftover("config.yaml", 1, 2, is_copied=True).change is FileChange.UNSEEN


def test_equal_runs_get_a_note() -> None:
    text = text_of(make_comparison(leftovers=left("cache.json")))
    assert "leftovers run 2 read cache.json, which run 1 had left" in text
    assert "--before" not in text


@pytest.mark.parametrize("verbose", [False, True])
def test_the_final_report_repeats_the_leftovers(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    leftovers = [*left("last.pt"), *left("table", change=FileChange.UNSEEN)]
    shown = document(make_different(leftovers=leftovers, causes=[]))
    with pytest.raises(SystemExit):
        conclude(make_different(leftovers=leftovers), Reports(is_verbose=verbose), shown=shown)
    text = " ".join(capsys.readouterr().out.split())
    assert "The runs did not start from the same files: run 2 read last.pt, which run 1 had left" in text
    assert "--before 'rm -f last.pt', or --fresh-copy" in text
    assert "Also, run 2 read table" in text


def test_the_final_report_names_no_files_if_none_were_left(capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(make_different(causes=[]))
    with pytest.raises(SystemExit):
        conclude(make_different(), Reports(), shown=shown)
    assert "leftovers" not in capsys.readouterr().out


def fix_of(*leftovers: Leftover, title: str = "Start each run from the same files") -> tuple[str, str]:
    """Title and code of the fix for files that were left over."""
    fix = Fix("leftover-file", title, "determinism check --fresh-copy -- COMMAND", None, True, 3, None)
    (written,) = document(make_different(leftovers=leftovers, fixes=[fix]))["fixes"]
    return written["title"], written["code"]


def test_the_fix_says_first_what_to_change_in_the_program() -> None:
    made = [replace(one, site=make_frame(7)) for one in left("last.pt")]
    title, code = fix_of(*made, title="Start each run from the same files; not enough on its own")
    begin = "Delete last.pt before each run, or start each run in an empty folder: "
    end = "/home/ada/project/train.py:7 reads what the previous run left there; not enough on its own"
    assert title == f"{begin}{end}"
    assert code.splitlines()[1:] == ["determinism check --fresh-copy -- python train.py"]
    assert "empty folder" not in fix_of(*left("last.pt", is_copied=False))[0]


def test_the_fix_deletes_nothing_that_may_be_the_users_own() -> None:
    written = left("last.pt", change=FileChange.OVERWRITTEN)
    title, _ = fix_of(*left("made.pt"), *written)
    assert title.startswith("Have the program write somewhere other than made.pt and last.pt: it reads them")
    for leftovers in ([], left("last.pt", change=FileChange.UNSEEN), [*written, *left("x", change=FileChange.UNSEEN)]):
        title, code = fix_of(*leftovers)
        assert title == "Start each run from the same files"
        assert code == "determinism check --fresh-copy -- python train.py"


def test_without_leftovers_none_are_mentioned() -> None:
    assert "leftovers" not in text_of(make_different()) + text_of(make_comparison())

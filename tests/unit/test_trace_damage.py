"""Truncated, damaged, foreign and newer traces: each has its own error, never an exception from a library."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.errors import DeterminismError
from determinism.report.document import document
from determinism.report.show import render_records, render_trace
from determinism.report.terminal import render
from determinism.trace.opening import open_trace
from determinism.types import Verdict
from tests.traces import TraceBuilder

TRIES = 60
OWN = Path("processes") / "main"


def write(folder: Path, *, records: int = 40, ended: bool = True) -> Path:
    """Write a trace of a few steps; if not ended, as a killed process leaves it."""
    builder = TraceBuilder(folder if ended else folder.with_name("unfinished"))
    made = -1
    for number in range(records):
        module = f"layers.{number % 3}"
        made = builder.add(f"op::{number % 5}", [made] if made >= 0 else [], [f"value {number}"], module=module)
        if number % 10 == 9:
            made = builder.step({"weight": made})
        if number == records // 2:
            builder._writer.flush()
    if not ended:
        shutil.copytree(folder.with_name("unfinished"), folder)
    builder.close()
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write(tmp_path / "whole")


@pytest.fixture
def damaged(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "damaged"))


def look(whole: Path, damaged: Path) -> Comparison | str:
    """Compare and show the traces; return the comparison or the identifier of the error."""
    console = Console(file=io.StringIO())
    found: Comparison | str
    try:
        found = compare(whole, damaged)
        render(document(found), console, verbose=True)
        document(found)
    except DeterminismError as error:
        found = error.identifier
    for show in (render_trace, lambda trace, console: render_records(trace, console, step=None, limit=None)):
        try:
            show(open_trace(damaged), console)
        except DeterminismError:
            continue
    return found


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    ("trace-missing", lambda trace: shutil.rmtree(trace)),
    ("trace-foreign", lambda trace: (trace / "manifest.json").unlink()),
    ("trace-foreign", lambda trace: (trace / "manifest.json").write_text("[1, 2]")),
    ("trace-foreign", lambda trace: (trace / "manifest.json").write_text('{"name": "web"}')),
    ("trace-foreign", lambda trace: edit(trace / "manifest.json", format="other/1")),
    ("trace-damaged", lambda trace: (trace / "manifest.json").write_text("")),
    ("trace-damaged", lambda trace: edit(trace / "manifest.json", exit_status="0")),
    ("trace-newer", lambda trace: edit(trace / "manifest.json", format="determinism.trace/99")),
    ("trace-newer", lambda trace: edit(trace / OWN / "process.json", format="determinism.trace/99")),
    ("trace-damaged", lambda trace: edit(trace / OWN / "process.json", level="deep")),
    ("trace-damaged", lambda trace: edit(trace / OWN / "process.json", blind_spots=[1])),
    ("trace-damaged", lambda trace: (trace / OWN / "process.json").unlink()),
    ("trace-damaged", lambda trace: (trace / OWN / "process.json").write_text("{")),
    ("trace-damaged", lambda trace: (trace / OWN / "records.arrow").unlink()),
]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 << 30)


def replaced(place: Path, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(trace: Path) -> None:
        (trace / place).unlink()
        make(trace / place)

    return damage


READ_FILES = [Path("manifest.json"), *(OWN / name for name in ("process.json", "records.arrow", "names.arrow"))]
DAMAGES += [
    ("trace-damaged", replaced(place, make))
    for place in READ_FILES
    for make in (os.mkfifo, sparse, lambda path: path.symlink_to("/dev/zero"))
]
DAMAGES += [
    ("trace-damaged", lambda trace: os.mkfifo(trace / OWN / "numbers.bin")),
    ("trace-damaged", lambda trace: sparse(trace / OWN / "numbers.bin")),
    ("trace-damaged", lambda trace: os.mkfifo(trace / OWN / "records.spool")),
    ("trace-damaged", lambda trace: (trace / "processes" / "main.1").symlink_to("main")),
]
VALUES_OF_OTHER_TYPES: list[Any] = [[], {}, ["main"], {"main": 1}, 1.5, True, "text", 1e308, -1, 10**400]
FIELDS = [(Path("manifest.json"), "level"), (Path("manifest.json"), "created"), (Path("manifest.json"), "complete"),
    (Path("manifest.json"), "seconds"), (Path("manifest.json"), "environment"), (Path("manifest.json"), "processes"), (Path("manifest.json"), "stopped_by"),
    (OWN / "process.json", "level"), (OWN / "process.json", "stream"), (OWN / "process.json", "started"),
    (OWN / "process.json", "stopped_by"), (OWN / "process.json", "ended"), (OWN / "process.json", "steps_by")]  # fmt: skip


@pytest.mark.parametrize(("place", "key"), FIELDS)
def test_a_value_of_the_wrong_type_is_not_an_internal_error(place: Path, key: str, whole: Path, damaged: Path) -> None:
    for value in (None, *VALUES_OF_OTHER_TYPES):
        edit(damaged / place, **{key: value})
        for order in ((whole, damaged), (damaged, whole)):
            found = look(*order)
            assert isinstance(found, Comparison) or found in ("trace-damaged", "levels-differ", "recorders-differ"), (
                value,
                found,
            )


@pytest.mark.parametrize(("identifier", "damage"), DAMAGES)
def test_each_kind_of_damage_has_its_error(
    identifier: str, damage: Callable[[Path], object], whole: Path, damaged: Path
) -> None:
    damage(damaged)
    assert look(whole, damaged) == identifier
    assert look(damaged, whole) == identifier


@pytest.mark.parametrize("name", ["records.arrow", "names.arrow"])
def test_a_file_cut_anywhere_makes_the_comparison_inconclusive(name: str, whole: Path, damaged: Path) -> None:
    content = (whole / OWN / name).read_bytes()
    for size in range(0, len(content) - 8, max(1, len(content) // 25)):
        (damaged / OWN / name).write_bytes(content[:size])
        for order in ((whole, damaged), (damaged, whole)):
            found = look(*order)
            assert isinstance(found, Comparison), (size, found)
            assert found.verdict is Verdict.INCONCLUSIVE, size
            assert [trouble.identifier for trouble in found.trouble] == ["trace-truncated"], size


def test_a_difference_before_the_cut_counts(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        builder = TraceBuilder(folder)
        first = builder.add("op::first", [], [f"run {number}"])
        builder.step({"weight": first})
        builder._writer.flush()
        for _ in range(50):
            builder.add("op::later", [first])
        builder.close()
    content = (folders[1] / OWN / "records.arrow").read_bytes()
    (folders[1] / OWN / "records.arrow").write_bytes(content[:-300])
    found = compare(*folders)
    assert found.verdict is Verdict.DIFFERENT
    assert found.first_divergence is not None
    assert found.first_divergence.op == "op::first"


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "killed"])
def test_random_damage_never_raises_an_unexpected_exception(ended: bool, tmp_path: Path) -> None:
    original = write(tmp_path / "original", ended=ended)
    chance = random.Random(20)
    files = sorted(path for path in original.rglob("*") if path.is_file())
    broken = tmp_path / "broken"
    for _ in range(TRIES):
        path = chance.choice(files)
        content = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            content = content[: chance.randrange(len(content) + 1)]
        elif content:
            # Most of a spool is empty; its data is at the beginning of the columns.
            reach = len(content) if chance.random() < 0.5 else min(len(content), 600)
            for _ in range(chance.choice([1, 2, 30])):
                content[chance.randrange(reach)] = chance.randrange(256)
        shutil.copytree(original, broken)
        (broken / path.relative_to(original)).write_bytes(content)
        look(original, broken)
        shutil.rmtree(broken)


def test_the_error_for_a_check_folder_names_its_traces(tmp_path: Path) -> None:
    write(tmp_path / "run-1")
    with pytest.raises(DeterminismError, match=r"It contains traces, though: give .*run-1\."):
        open_trace(tmp_path)


def test_levels_and_steps_must_agree(tmp_path: Path, whole: Path, damaged: Path) -> None:
    edit(damaged / OWN / "process.json", level="step")
    assert look(whole, damaged) == "levels-differ"
    edit(damaged / OWN / "process.json", level="op")
    edit(damaged / "manifest.json", steps=3)
    assert look(whole, damaged) == "steps-differ"


def test_recorders_must_agree(tmp_path: Path, whole: Path, damaged: Path) -> None:
    edit(whole / OWN / "process.json", recorder="native", recorder_reason="")
    edit(damaged / OWN / "process.json", recorder="python", recorder_reason="no C++ compiler was found")
    assert look(whole, damaged) == "recorders-differ"
    edit(damaged / OWN / "process.json", recorder="native", recorder_reason="")
    assert isinstance(look(whole, damaged), Comparison)


def test_traces_that_name_no_recorder_are_compared(tmp_path: Path, whole: Path, damaged: Path) -> None:
    edit(damaged / OWN / "process.json", recorder="python", recorder_reason="")
    assert isinstance(look(whole, damaged), Comparison)


def write_crowd(folder: Path, value: str = "") -> Path:
    """Write a trace of a main process with threads and a child process."""
    builder = TraceBuilder(folder)
    child = builder.beside("main.1")
    threads = builder.beside("main.threads", stream="threads", part_of="main")
    for stream in (builder, child, threads):
        made = stream.add("op::first", [], [f"{value}first"])
        for _ in range(3):
            made = stream.add("op::next", [made], [f"{value}next"])
        stream.step({"weight": made})
    return builder.close()


def contents(folder: Path) -> list[Path]:
    """Every file and folder of a trace."""
    return [Path("."), *sorted(path.relative_to(folder) for path in folder.rglob("*"))]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    for below in [*path.iterdir()] if path.is_dir() else []:
        remove(below)
    if path.is_file():
        path.write_bytes(b"")


@pytest.mark.parametrize("damage", [remove, empty])
def test_traces_with_lost_files_are_never_called_the_same(damage: Callable[[Path], None], tmp_path: Path) -> None:
    whole = write_crowd(tmp_path / "whole")
    for number, place in enumerate(contents(whole)):
        parts = [Path(shutil.copytree(whole, tmp_path / f"{side} {number}")) for side in ("one", "other")]
        assert compare(whole, parts[0]).verdict is Verdict.SAME
        if (whole / place).is_file() and not (whole / place).stat().st_size:
            continue
        for part in parts:
            damage(part / place)
        for pair in ((whole, parts[0]), (parts[0], whole), tuple(parts)):
            found = look(*pair)
            verdict = found if isinstance(found, str) else found.verdict
            assert verdict in ("trace-damaged", "trace-foreign", "trace-missing", Verdict.INCONCLUSIVE), (
                place,
                verdict,
            )


def test_a_lost_process_is_named(tmp_path: Path) -> None:
    whole, lost = write_crowd(tmp_path / "whole"), write_crowd(tmp_path / "lost")
    shutil.rmtree(lost / OWN)

    (trouble,) = compare(whole, lost).trouble

    assert trouble.identifier == "process-missing"
    assert "run 2" in trouble.message
    assert "('main')" in trouble.message


def test_a_process_in_only_one_run_is_a_difference(tmp_path: Path) -> None:
    with_child, without = write_crowd(tmp_path / "with"), TraceBuilder(tmp_path / "without")
    threads = without.beside("main.threads", stream="threads", part_of="main")
    for stream in (without, threads):
        made = stream.add("op::first", [], ["first"])
        for _ in range(3):
            made = stream.add("op::next", [made], ["next"])
        stream.step({"weight": made})

    found = compare(with_child, without.close())

    assert found.verdict is Verdict.DIFFERENT
    assert found.first_divergence is not None
    assert found.first_divergence.process == "main.1"


def test_a_run_recorded_only_in_threads_differs_from_one_with_a_main_process(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    both = TraceBuilder(folders[0])
    both.add("op::first", [], ["first"])
    streams = [
        both.beside("main.threads", stream="threads", part_of="main"),
        TraceBuilder(folders[1], key="main.threads", stream="threads", part_of="main"),
    ]
    for stream in streams:
        stream.step({"weight": stream.add("op::thread", [], ["made"])})
    both.close()
    streams[1].close()

    for pair in (folders, folders[::-1]):
        assert compare(*pair).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("taken", ["records.arrow", "names.arrow", "process.json", ""])
@pytest.mark.parametrize("name", ["main", "main.1", "main.threads"])
def test_a_file_of_another_run_is_refused_even_if_its_contents_are_equal(name: str, taken: str, tmp_path: Path) -> None:
    whole, foreign = write_crowd(tmp_path / "whole"), write_crowd(tmp_path / "foreign")
    assert compare(whole, foreign).verdict is Verdict.SAME
    mixed = Path(shutil.copytree(whole, tmp_path / "mixed"))
    place, source = (run / "processes" / name / taken for run in (mixed, foreign))
    if taken:
        shutil.copy(source, place)
    else:
        shutil.rmtree(place)
        shutil.copytree(source, place)

    with pytest.raises(DeterminismError, match="mixes files that do not belong together") as caught:
        compare(whole, mixed)
    assert caught.value.identifier == "trace-mixed"


@pytest.mark.parametrize("taken", ["records.arrow", "names.arrow", "process.json"])
def test_a_file_of_another_process_of_the_run_is_refused(taken: str, tmp_path: Path) -> None:
    mixed = write_crowd(tmp_path / "mixed")
    shutil.copy(mixed / "processes" / "main.1" / taken, mixed / "processes" / "main" / taken)

    with pytest.raises(DeterminismError, match="belongs to process 'main.1'") as caught:
        compare(mixed, mixed)
    assert caught.value.identifier == "trace-mixed"


def test_traces_without_a_run_identifier_are_compared(tmp_path: Path) -> None:
    whole = write_crowd(tmp_path / "whole")
    for file in whole.rglob("*.json"):
        document = json.loads(file.read_text())
        document.pop("run")
        file.write_text(json.dumps(document))

    assert compare(whole, whole).verdict is Verdict.SAME


def test_text_in_a_trace_cannot_start_a_line_or_control_the_terminal(damaged: Path) -> None:
    edit(damaged / OWN / "process.json", steps_by="train\n::error::\x1b[2J", framework="torch\n::error::\x1b[2J")
    console = Console(file=io.StringIO())

    render_trace(open_trace(damaged), console)

    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in text
    assert not any(line.lstrip().startswith("::error") for line in text.splitlines())

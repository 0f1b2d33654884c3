"""Sources are noted at the lines that use them, differ if runs differ, and give the same values in every run if they are fixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determinism.diagnose.sources import differing_sources, places_used
from determinism.run_spec import FixedSource, ProbeRequest, RunSpec
from tests.e2e.probing import Stage, documents

WORDS = "words = {w for w in ['ant', 'bee', 'cat', 'dog', 'eel', 'fox', 'gnu', 'hen']}\n"

ORDERS = {
    "for": "for w in words:\n    print(w)",
    "list": "print(list(words))",
    "comprehension": "print([w for w in words])",
    "dict comprehension": "print({w: 1 for w in words})",
    "generator": "print('-'.join(w + '!' for w in words))",
    "join": "print('-'.join(words))",
    "enumerate": "for index, w in enumerate(words):\n    print(index, w)",
    "star": "print(*words)",
    "unpacking": "first, *_ = words; print(first)",
    "dict from keys": "print(dict.fromkeys(words))",
    "next": "print(next(iter(words)))",
    "pop": "print(words.pop(), words.pop())",
    "extending": "found = []; found += words; print(found)",
    "string": "print(str(words))",
    "keyed maximum": "print(max(words, key=len))",
    "union": "print(list(words | {'zebra'}))",
    "yield": "def each():\n    yield from words\nprint(list(each()))",
    "argument": "def show(many):\n    print(list(many))\nshow(words)",
    "library": "import itertools; print(list(itertools.chain(words, [1])))",
}
"""Programs whose output shows the order of a set."""


@pytest.mark.parametrize("name", ORDERS)
def test_order_of_a_set_differs_and_can_be_fixed(tmp_path: Path, name: str) -> None:
    stage = Stage(tmp_path, WORDS + ORDERS[name])
    lines = {"yield": 3, "argument": 3}

    found = differing_sources(stage.noted(PYTHONHASHSEED="1"), stage.noted(PYTHONHASHSEED="2"))

    assert {(one.source, one.site.line, one.differs) for one in found} == {("set-order", lines.get(name, 2), True)}
    first, second = (stage.fixed(*found, PYTHONHASHSEED=seed).stdout for seed in "12")
    assert first == second
    usual = stage.plain(PYTHONHASHSEED="1").stdout
    assert any(stage.plain(PYTHONHASHSEED=seed).stdout != usual for seed in "2345678")


@pytest.mark.parametrize(
    "use",
    ["sorted(words)", "len(words)", "min(words)", "'ant' in words", "set(words) == words", "sorted(w for w in words)",
     "any(w == 'ant' for w in words)", "sorted(list(words))", "words.add('ape')", "sum({1, 2, 3})",
     "{w.upper() for w in words} == set()", "copy.deepcopy(words) == words", "len([].append(words) or [])",
     "functools.partial(len, words)()", "dict(a=words)['a'] == words", "hash(frozenset(words))", "len([w for w in words])", "sorted({**dict.fromkeys('ab')})"],
)  # fmt: skip
def test_uses_that_do_not_depend_on_the_order_are_not_noted(tmp_path: Path, use: str) -> None:
    stage = Stage(tmp_path, f"import copy, functools\n{WORDS}print({use})")

    assert [one for one in documents(stage.noted()) if one.get("source") == "set-order"] == []


def test_objects_are_put_in_the_order_of_their_first_use(tmp_path: Path) -> None:
    program = """
        class Layer:
            def __init__(self, name):
                self.name = [name]
        layers = [Layer(n) for n in range(50)]
        chosen = set(layer for layer in layers)
        chosen.add(Layer(99))
        print([layer.name[0] for layer in chosen])
    """
    stage = Stage(tmp_path, program)
    found = differing_sources(stage.noted(), stage.noted())
    [source] = found or [None]

    assert stage.probed(request=ProbeRequest(fixed_sources=("set-order",))).stdout == f"{[*range(50), 99]}\n"
    assert source is None or source.elements == "objects"


def test_clock_is_noted_and_keeps_advancing_when_fixed(tmp_path: Path) -> None:
    program = """
        import time
        from datetime import datetime
        print(datetime.now().isoformat())
        end = time.time() + 0.05
        steps = 0
        while time.time() < end:
            steps += 1
        print(steps, time.strftime("%H"), time.localtime(0).tm_year)
    """
    stage = Stage(tmp_path, program)
    found = stage.differing()

    assert [(one.source, one.site.line) for one in found][:3] == [("clock", 4), ("clock", 5), ("clock", 7)]
    assert stage.fixed(*found).stdout == stage.fixed(*found).stdout
    assert stage.fixed(*found).stdout.splitlines()[1].startswith("4 ")


def test_clock_that_is_fixed_at_one_line_is_fixed_in_the_file(tmp_path: Path) -> None:
    program = "import time\nstart = time.time()\nwhile time.time() - start < 0.05:\n    pass\nprint(time.time() - start < 1)\n"
    stage = Stage(tmp_path, program)

    assert stage.fixed(stage.differing()[0]).stdout == "True\n"


LISTINGS = {
    "listdir": "print(os.listdir('data'))",
    "scandir": "with os.scandir('data') as entries:\n    print([entry.name for entry in entries])",
    "walk": "print([(folder, files) for folder, _, files in os.walk('data')])",
    "glob": "print(glob.glob('data/*'))",
    "iglob": "print(list(glob.iglob('data/*')))",
    "iterdir": "print([path.name for path in pathlib.Path('data').iterdir()])",
    "path glob": "print([path.name for path in pathlib.Path('data').glob('*')])",
}


@pytest.mark.parametrize("name", LISTINGS)
def test_listings_are_noted_and_sorted_when_fixed(tmp_path: Path, name: str) -> None:
    stage = Stage(tmp_path, "import glob, os, pathlib\n" + LISTINGS[name])
    folder = stage.folder / "data"
    folder.mkdir()
    names = [f"part-{number}.txt" for number in range(6)]
    for part in names:
        (folder / part).touch()
    [note, *_] = [one for one in documents(stage.noted()) if one.get("source") == "listing"]

    assert note["line"] in (2, 3)
    assert sorted(note["shown"].split()) == (
        [f"data/{part}" for part in names] if "glob" in name and "path" not in name else names
    )
    printed = stage.probed(request=ProbeRequest(fixed_sources=("listing",))).stdout
    assert [printed.index(part) for part in names] == sorted(printed.index(part) for part in names)


def test_sorted_listing_is_not_noted(tmp_path: Path) -> None:
    program = "import os\nprint(sorted(os.listdir('.')), sorted(n for n in os.listdir('.')), len(os.listdir('.')))"

    assert [one for one in documents(Stage(tmp_path, program).noted()) if "source" in one] == []


def test_first_uses_are_all_noted_and_later_ones_counted(tmp_path: Path) -> None:
    notes = Stage(tmp_path, "import time\nfor _ in range(1000):\n    time.time()\n").noted()
    taken = [one["occurrence"] for one in documents(notes) if "digest" in one]

    assert taken == [*range(64), 64, 128, 256, 512]
    assert [one["count"] for one in documents(notes) if "count" in one] == [1000]


def test_program_that_exits_abruptly_leaves_its_notes(tmp_path: Path) -> None:
    program = "import os, time\ntime.time()\nos._exit(0)\n"

    assert [one["line"] for one in documents(Stage(tmp_path, program).noted()) if "digest" in one] == [2]


def test_incomplete_lines_are_ignored(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "import time\ntime.time()\ntime.time()\n")
    first, second = stage.noted(), stage.noted()
    with (first / "main.jsonl").open("ab") as file:
        file.write(b'{"source": "clo')
    with (second / "main.jsonl").open("ab") as file:
        file.write(b"\x00\xff\n[]\n")

    assert [one.site.line for one in differing_sources(first, second)] == [2, 3]


def test_each_child_process_has_its_own_notes(tmp_path: Path) -> None:
    program = """
        import multiprocessing, os, time
        def work():
            time.time()
        if __name__ == "__main__":
            for method in "fork", "spawn", "forkserver":
                context = multiprocessing.get_context(method)
                process = context.Process(target=work, name=f"by-{method}")
                process.start()
                process.join()
                assert process.exitcode == 0
            if os.fork() == 0:
                work()
                os._exit(0)
            os.wait()
    """
    notes = Stage(tmp_path, program).noted()
    lines = {path.stem: [one["line"] for one in documents(path.parent) if "digest" in one] for path in notes.iterdir()}

    assert sorted(lines) == ["main", "main.by-fork", "main.by-forkserver", "main.by-spawn", "main.fork-2"]
    for path in notes.iterdir():
        noted = [json.loads(line).get("line") for line in path.read_text().splitlines()][1:]
        assert noted == ([] if path.stem == "main" else [4])


def test_uses_that_only_one_run_reached_are_left_out(tmp_path: Path) -> None:
    program = "import os, time\nif os.environ['WHICH'] == '1':\n    time.time()\ntime.time()\n"
    stage = Stage(tmp_path, program)

    assert [one.site.line for one in differing_sources(stage.noted(WHICH="1"), stage.noted(WHICH="2"))] == [4]


def test_sites_of_a_copy_are_those_of_the_original(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "import time\nprint(time.time())\n")
    notes = tmp_path / "notes"
    notes.mkdir()
    stage.run(RunSpec(probes=ProbeRequest(notes=notes), copied=(str(stage.folder), "/home/ada/project")))

    assert [one["file"] for one in documents(notes) if "digest" in one] == ["/home/ada/project/main.py"]


@pytest.mark.parametrize(("is_wanted", "clock_lines"), [(True, {4}), (False, set())])
def test_the_lines_that_a_run_used_are_known_even_if_their_values_are_equal(
    is_wanted: bool, clock_lines: set[int], tmp_path: Path
) -> None:
    text = f"""\
import os, time
def stamp(is_wanted):
    return (
        time.time()
        if is_wanted else 0)
own = bytes(
    os.getpid() % 1)
stamp({is_wanted})
"""
    stage = Stage(tmp_path, text)
    used = places_used(stage.noted())
    assert {one.line for one in used if one.source == "clock"} == clock_lines
    assert FixedSource(stage.main, 7, "process-id") in used

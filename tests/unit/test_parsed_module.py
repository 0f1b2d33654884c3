"""A file of the program is parsed once: loops are those that repeat a node, and offsets and edits agree with the file's bytes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from determinism.diagnose.parsed_module import Module, counter_of, last_part


def _draw(text: str) -> tuple[Module, ast.Call]:
    module = Module("train.py", text)
    [call] = [one for one in module.nodes if isinstance(one, ast.Call) and last_part(one.func) == "draw"]
    return module, call


@pytest.mark.parametrize(
    ("text", "counters"),
    [
        ("draw()\n", []),
        ("for i in range(3):\n    draw()\n", ["i"]),
        ("for batch in loader:\n    for i, one in enumerate(batch):\n        draw()\n", ["i", None]),
        ("for i in tqdm(range(3)):\n    draw()\n", ["i"]),
        ("for i in draw():\n    pass\n", []),
        ("for i in range(3):\n    pass\nelse:\n    draw()\n", []),
        ("async def run():\n    async for i in stream:\n        draw()\n", [None]),
        ("while draw():\n    pass\n", [None]),
        ("while True:\n    class Part:\n        value = draw()\n", [None]),
        ("while True:\n    def part():\n        draw()\n", []),
        ("for i in range(3):\n    later = lambda: draw()\n", []),
        ("found = [draw() for i in range(3)]\n", ["i"]),
        ("found = {i: draw() for i in range(3) for one in lists[i]}\n", [None, "i"]),
        ("found = [one for one in draw()]\n", []),
        ("found = [one for one in ones if draw()]\n", [None]),
        ("found = [one for i in range(3) for one in draw()]\n", ["i"]),
    ],
)
def test_loops_are_those_that_repeat_an_expression(text: str, counters: list[str | None]) -> None:
    module, call = _draw(text)
    assert [counter_of(loop) for loop in module.loops_of(call)] == counters


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_change_has_the_text_of_its_line(end: str, mark: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = ["größe = 'ü\x0c'; draw(größe)", "last = 1", ""]
    file.write_bytes(mark + end.join(lines).encode())
    module = Module.read(file)
    assert module is not None
    [call] = [one for one in module.nodes if isinstance(one, ast.Call)]
    [changed] = module.changed([module.first_argument(call, "0")])
    assert (changed.line, changed.before, changed.after) == (1, lines[0], "größe = 'ü\x0c'; draw(0, größe)")
    assert module.frame(call).code == lines[0]


@pytest.mark.parametrize("content", [b"x = (", b"x = '\xff'", b"x = 1\0"])
def test_a_file_that_is_not_python_in_utf_8_is_not_read(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(content)
    assert Module.read(file) is None
    assert Module.read(tmp_path / "missing.py") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(seed=0)"),
        ("f(  # none\n)", "f(seed=0  # none\n)"),
        ("f(a, (b))", "f(a, (b), seed=0)"),
        ("f(a,)", "f(a, seed=0)"),
        ("f(a,  # the last, so far,\n)", "f(a, seed=0  # the last, so far,\n)"),
        ("f(\n    a, b=1\n)", "f(\n    a, b=1, seed=0\n)"),
        ("f(\n    a,\n    b=1\n)", "f(\n    a,\n    b=1,\n    seed=0\n)"),
        ("f(\n    a,\n    *b,\n)", "f(\n    a,\n    *b,\n    seed=0,\n)"),
        ("f(\n    a,\n    **b,  # c,\n)", "f(\n    a,\n    **b,  # c,\n    seed=0,\n)"),
        ("f(\n    a,\n    b)", "f(\n    a,\n    b, seed=0)"),
    ],
)
def test_a_new_last_argument_stands_as_the_one_before_it_does(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(before)
    module = Module.read(str(file))
    assert module is not None
    call = module.tree.body[0].value  # type: ignore[attr-defined]
    edit = module.last_argument(call, "seed=0")
    changed = f"{before[: edit.start]}{edit.text}{before[edit.end :]}"
    assert changed == after
    ast.parse(changed)

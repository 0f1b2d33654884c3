"""Calls that led to a library's own generator get a seed; in a loop, a different one each time or a warning."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.diagnose.code_changes import code_fix
from determinism.diagnose.experiments import Hypothesis, Intervention
from determinism.diagnose.fixes import fixes_for, seeded_again
from determinism.diagnose.sources import LedBy, Source, SourceSite
from determinism.run_spec import FixedSource

CALL = "env.reset()"


def led_to_by(folder: Path, text: str, function: str = "<module>") -> Source:
    """The generator that a library made in the only `CALL` of a program."""
    program, library = folder / "train.py", folder / "seeding.py"
    program.write_text(text)
    library.write_text("generator = Generator(PCG64())\n")
    node = next(one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call) and ast.unparse(one) == CALL)
    place = node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
    site = SourceSite(str(program), *place, function, CALL)
    made = SourceSite(str(library), 1, 12, 1, 30, "np_random", "generator = Generator(PCG64())")
    led_by = (LedBy(site, "seed", True),)
    return Source(
        "unseeded-generator",
        made,
        "",
        None,
        "",
        (0, 0),
        None,
        0,
        (1, 1),
        (None, None),
        is_in_library=True,
        led_by=led_by,
    )


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        (f"state = {CALL}\n", "0"),
        (f"for episode in range(9):\n    state = {CALL}\n", "episode"),
        (f"for episode in tqdm(range(9)):\n    if episode:\n        state = {CALL}\n", "episode"),
        (f"for episode in trange(9):\n    state = {CALL}\n", "episode"),
        (f"for step, batch in enumerate(loader):\n    state = {CALL}\n", "step"),
        (f"for step in range(9):\n    for _ in range(3):\n        state = {CALL}\n", "0"),
        (f"states = [{CALL} for number in range(3)]\n", "number"),
        (f"for name in names:\n    state = {CALL}\n", "0"),
        (f"while True:\n    state = {CALL}\n", "0"),
        (f"for state in range({CALL}):\n    pass\n", "0"),
        (f"for episode in range(9):\n    def begin():\n        return {CALL}\n", "0"),
    ],
)
def test_the_seed_is_the_counter_of_the_loop_around_the_call(tmp_path: Path, text: str, seed: str) -> None:
    change = code_fix(led_to_by(tmp_path, text))
    assert change is not None
    assert f"env.reset(seed={seed})" in change.code
    assert CALL not in change.code


@pytest.mark.parametrize(
    ("text", "function", "warning"),
    [
        (f"state = {CALL}\n", "<module>", None),
        (f"for episode in range(9):\n    state = {CALL}\n", "<module>", None),
        (f"for name in names:\n    state = {CALL}\n", "<module>", "The line is in a loop"),
        (f"while True:\n    state = {CALL}\n", "<module>", "The line is in a loop"),
        (
            f"for agent in agents:\n    for episode in range(9):\n        state = {CALL}\n",
            "<module>",
            "The loop is within",
        ),
        (f"states = [{CALL} for agent in agents for episode in range(9)]\n", "<module>", "The loop is within"),
        (f"for agent in agents:\n    pass\nfor episode in range(9):\n    state = {CALL}\n", "<module>", None),
        (f"def main():\n    return {CALL}\n", "main", None),
        (f"def play():\n    return {CALL}\n", "play", "If the line runs more than once"),
    ],
)
def test_a_repeatedly_given_seed_comes_with_a_warning(
    tmp_path: Path, text: str, function: str, warning: str | None
) -> None:
    found = seeded_again(led_to_by(tmp_path, text, function))
    assert found is None if warning is None else found is not None and found.startswith(warning)


def test_a_deleted_file_gets_no_warning(tmp_path: Path) -> None:
    source = led_to_by(tmp_path, f"while True:\n    state = {CALL}\n")
    (tmp_path / "train.py").unlink()
    assert seeded_again(source) is None


def test_a_seed_that_a_call_would_only_pass_on_is_not_guessed_beside_one_that_is_declared(tmp_path: Path) -> None:
    source = led_to_by(tmp_path, f"env = make('x')\nstate = {CALL}\n")
    (declared,) = source.led_by
    site = replace(declared.site, line=1, column=6, end_line=1, end_column=15)
    guessed = LedBy(site, "seed", False)

    change = code_fix(replace(source, led_by=(declared, guessed)))
    assert change is not None and change.code == "state = env.reset(seed=0)"
    change = code_fix(replace(source, led_by=(guessed,)))
    assert change is not None and change.code == "env = make('x', seed=0)"


@pytest.mark.parametrize(("is_made", "which"), [(False, "that draws"), (True, "made")])
def test_what_only_its_method_seeds_gets_a_sentence_instead_of_a_changed_line(
    is_made: bool, which: str, tmp_path: Path
) -> None:
    source = led_to_by(tmp_path, f"state = {CALL}\n")
    led = replace(source.led_by[0], argument=None, is_declared=False, method="seed", is_made=is_made)
    source = replace(source, led_by=(led,))
    held = FixedSource(source.site.file, source.site.line, source.source)
    cause = Hypothesis("outside-entropy", Intervention(sources=frozenset({held})), (), source=source)

    [fix] = fixes_for([cause], None, None, None)
    assert (fix.code, fix.patch, fix.verified) == (None, None, False)
    assert fix.title == (
        f"Give the library a seed with the method seed() of the object {which} at train.py:1, once before it draws"
    )

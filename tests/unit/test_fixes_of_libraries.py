"""Calls that led to a library's own generator get a seed; in a loop, a different one each time or a warning."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.diagnose.code_changes import code_fix
from determinism.diagnose.experiments import Hypothesis, Intervention, Trial
from determinism.diagnose.fixes import fixes_for, seeded_again
from determinism.diagnose.sources import LedBy, Source, SourceSite
from determinism.run_spec import FixedSource
from determinism.types import Verdict

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


def drawn_from(folder: Path, text: str, *, is_made: bool = False) -> Source:
    """The same, if the object that the call draws from, or makes, has a method that seeds it."""
    source = led_to_by(folder, text)
    led = replace(source.led_by[0], argument=None, is_declared=False, method="seed", is_made=is_made)
    return replace(source, led_by=(led,))


@pytest.mark.parametrize(
    ("text", "seeded"),
    [
        (f"env = make()\nstate = {CALL}\n", "env = make()\nenv.seed(0)\nstate = env.reset()\n"),
        (
            f"env = make()  # one\nfor _ in x:\n    {CALL}\n",
            "env = make()  # one\nenv.seed(0)\nfor _ in x:\n    env.reset()\n",
        ),
        (f"env = a()\nenv = b(env)\n{CALL}", "env = a()\nenv = b(env)\nenv.seed(0)\nenv.reset()"),
        (
            f"def main():\n    env = make(\n        1)\n    if env:\n        {CALL}\n",
            "def main():\n    env = make(\n        1)\n    env.seed(0)\n    if env:\n        env.reset()\n",
        ),
        (
            f"for i in range(3):\n    env = make()\n    {CALL}\n",
            "for i in range(3):\n    env = make()\n    env.seed(i)\n    env.reset()\n",
        ),
        (f"if x:\n    env = make()\nelse:\n    env = other()\n{CALL}\n", None),
        (f"env = make()\nif x:\n    env = other()\n{CALL}\n", None),
        (f"env = make(); other = 1\n{CALL}\n", None),
        (f"def draw(env):\n    return {CALL}\n", None),
        (f"env = make()\ndef draw():\n    return {CALL}\n", None),
        (f"with make() as env:\n    {CALL}\n", None),
    ],
)
def test_an_object_is_seeded_after_the_line_that_makes_it_if_that_is_certain(
    tmp_path: Path, text: str, seeded: str | None
) -> None:
    change = code_fix(drawn_from(tmp_path, text))
    if seeded is None:
        assert change is None
        return
    assert change is not None
    (lines,) = change.changes
    assert text.replace(lines.before, lines.after, 1) == seeded


@pytest.mark.parametrize(
    ("text", "seeded"),
    [
        (f"env = {CALL}\nprint(env)\n", f"env = {CALL}\nenv.seed(0)\nprint(env)\n"),
        (f"self.env = {CALL}\n", f"self.env = {CALL}\nself.env.seed(0)\n"),
        (f"env = {CALL}  # the last", f"env = {CALL}  # the last\nenv.seed(0)"),
        (f"env = wrapped({CALL}, 1)\n", f"env = wrapped({CALL}, 1)\nenv.seed(0)\n"),
        (f"env = wrapped([lambda: {CALL}])\n", None),
        (f"env, other = {CALL}\n", None),
        (f"for env in {CALL}:\n    pass\n", None),
    ],
)
def test_an_object_is_seeded_after_the_line_that_was_seen_to_make_it(
    tmp_path: Path, text: str, seeded: str | None
) -> None:
    change = code_fix(drawn_from(tmp_path, text, is_made=True))
    assert (None if change is None else text.replace(change.changes[0].before, change.changes[0].after)) == seeded


def test_the_fix_of_an_object_names_the_line_that_makes_it(tmp_path: Path) -> None:
    source = drawn_from(tmp_path, f"env = make()\nfor _ in range(9):\n    {CALL}\n")
    held = FixedSource(source.site.file, source.site.line, source.source)
    cause = Hypothesis("outside-entropy", Intervention(sources=frozenset({held})), (), source=source)
    trial = Trial(cause.intervention, 2, Verdict.SAME, None)
    [fix] = fixes_for([cause], trial, trial, None)
    assert (fix.title, fix.code) == ("Give the library a seed, at train.py:1", "env = make()\nenv.seed(0)")
    assert fix.patch is not None and "+env.seed(0)" in fix.patch


@pytest.mark.parametrize(("is_made", "which"), [(False, "that draws"), (True, "made")])
def test_what_only_its_method_seeds_gets_a_sentence_instead_of_a_changed_line(
    is_made: bool, which: str, tmp_path: Path
) -> None:
    source = drawn_from(tmp_path, f"state = ({CALL}, 1)\n", is_made=is_made)
    held = FixedSource(source.site.file, source.site.line, source.source)
    cause = Hypothesis("outside-entropy", Intervention(sources=frozenset({held})), (), source=source)

    [fix] = fixes_for([cause], None, None, None)
    assert (fix.code, fix.patch, fix.verified) == (None, None, False)
    assert fix.title == (
        f"Give the library a seed with the method seed() of the object {which} at train.py:1, once before it draws"
    )

"""A generator made or seeded by a library is noted there, with the program line that led to it and the seed parameter."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from determinism.diagnose.code_changes import code_fix
from determinism.diagnose.sources import Source, unseeded_generators
from determinism.run_spec import FixedSource, ProbeRequest
from tests.e2e.probing import Ended, Stage

LIBRARY = """
import functools
import os
import random
import time

class Stage:
    __slots__ = ("f", "args", "kw", "__weakref__")

    def __init__(self, f, *args, **kw):
        self.f, self.args, self.kw = f, args, kw

def shuffled(data, size, seed=None):
    rng = random.Random((os.getpid() + time.time()) if seed is None else seed)
    data = list(data)
    rng.shuffle(data)
    return data

class Pipeline:
    def __init__(self, source, stages=()):
        self.source, self.stages = source, list(stages)

    def shuffle(self, size, **kw):
        return Pipeline(self.source, [*self.stages, functools.partial(shuffled, size=size, **kw)])

    def further(self, size, **kw):
        self.stages.append(functools.partial(shuffled, size=size, **kw))
        return self

    def map(self, f):
        return Pipeline(self.source, [*self.stages, functools.partial(map, f)])

    def __iter__(self):
        data = self.source
        for stage in self.stages:
            data = stage(data)
        return iter(data)

class Sampler:
    def __init__(self, kind="uniform", *, random_state=None):
        self.random_state = random_state
        self._made = None

    def draw(self):
        if self._made is None:
            self._made = random.Random(self.random_state)
        return self._made.random()

def drawn(count, rng=None):
    rng = random.Random() if rng is None else rng
    return [rng.random() for _ in range(count)]

class Environment:
    def __init__(self, size=1):
        self._rng = None

    def reset(self, *, seed=None):
        if seed is not None or self._rng is None:
            self._rng = random.Random(seed)
        return self._rng.random()

class Wrapped:
    def __init__(self, inside):
        self.inside = inside

    def reset(self, *, seed=None):
        return self.inside.reset(seed=seed)

class Vector:
    def __init__(self, *inside):
        self.inside = inside

    def reset(self, *, seed=None):
        if seed is None:
            seed = [None for _ in self.inside]
        elif isinstance(seed, int):
            seed = [seed + number for number in range(len(self.inside))]
        return [one.reset(seed=given) for one, given in zip(self.inside, seed)]

def generator(seed=None):
    return random.Random(seed)

class Eager:
    def __init__(self, **kw):
        self.first = generator().random()

    def reset(self, *, seed=None):
        return generator(seed).random()

def eager(**kw):
    return Eager(**kw)

class Space:
    first = None

    def seed(self, seed=None):
        self.first = generator(seed)

    def sample(self):
        if self.first is None:
            self.seed()
        return self.first.random()

def scattered(space):
    return random.Random().random()

class Spacious:
    def __init__(self, **kw):
        self.space = Space()

class Simulation:
    def __init__(self, **options):
        self._inside = Environment()

    def set_seed(self, seed):
        self._inside.reset(seed=seed)

    def play(self):
        return self._inside.reset()

def collected(simulation):
    return simulation.play()

class Fleet:
    def __init__(self, makers):
        self.members = [maker() for maker in makers]

    def set_seed(self, seed):
        for member in self.members:
            member.reset(seed=seed)

    def play(self):
        return [member.reset() for member in self.members]

def made(name, **kw):
    return Wrapped(Environment(**kw))

def caller():
    import sys
    return sys._getframe(1).f_code.co_name

class Pool:
    def __init__(self, seed=None):
        self.sampler = Sampler(random_state=seed)
"""
IMPORTED = "from drawing import *\n"


class Case(NamedTuple):
    """A program, the line that is reported, and that line with a seed added."""

    program: str
    line: str
    fixed: str | None


CASES = {
    "made late": Case("s = Sampler()\nprint(s.draw())\n", "s = Sampler()", "s = Sampler(random_state=0)"),
    "of two lines each": Case(
        "a, b = Sampler(random_state=1), Sampler('x')\nprint(a.draw(), b.draw())\n",
        "a, b = Sampler(random_state=1), Sampler('x')",
        "a, b = Sampler(random_state=1), Sampler('x', random_state=0)",
    ),
    "given as none": Case(
        "s = Sampler(random_state=None)\nprint(s.draw())\n", "s = Sampler(random_state=None)", "s = Sampler(random_state=0)"
    ),
    "passed on by keywords": Case(
        "p = (\n    Pipeline('abcdefgh')\n    .shuffle(5)\n    .map(str)\n)\nprint(*p)\n", ".shuffle(5)", "    .shuffle(5, seed=0)"
    ),
    "of two stages of one kind": Case(
        "p = Pipeline('abcdefgh').shuffle(2, seed=3)\np = p.shuffle(5)\nprint(*p)\n", "p = p.shuffle(5)", "p = p.shuffle(5, seed=0)"
    ),
    "a stage of what gives itself back": Case(
        "p = Pipeline('abcdefgh')\np = p.further(5)\nprint(*p)\n", "p = p.further(5)", "p = p.further(5, seed=0)"
    ),
    "a generator": Case("print(drawn(3))\n", "print(drawn(3))", "import random\nprint(drawn(3, rng=random.Random(0)))"),
    "an object within": Case("p = Pool()\nprint(p.sampler.draw())\n", "p = Pool()", "p = Pool(seed=0)"),
    "seeded by a method": Case("e = made('x')\nprint(e.reset())\n", "print(e.reset())", "print(e.reset(seed=0))"),
    "seeded by a method for several": Case(
        "e = Vector(made('x'), made('y'))\nprint(e.reset())\n", "print(e.reset())", "print(e.reset(seed=0))"
    ),
    "no parameter": Case("def f(s=Sampler):\n    return s()\ns = f()\nprint(s.draw())\n", "return s()", "    return s(random_state=0)"),
}  # fmt: skip


def staged(folder: Path, program: str) -> tuple[Stage, str]:
    """Return the program on its stage, and the path of an installed library that it uses."""
    library = folder / "site-packages" / "drawing"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(textwrap.dedent(LIBRARY), encoding="utf-8")
    return Stage(folder, IMPORTED + program), str(library.parent)


def runs(stage: Stage, request: ProbeRequest, path: str) -> list[Ended]:
    return [stage.probed(request=request, PYTHONPATH=path) for _ in range(2)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_line_and_seed_are_found(case: Case, tmp_path: Path) -> None:
    stage, path = staged(tmp_path, case.program)
    (source,) = stage.differing(PYTHONPATH=path)

    assert source.is_in_library and source.site.frame.file.endswith("drawing/__init__.py")
    assert {led.site.frame.code for led in source.led_by} == {case.line}
    change = code_fix(source)
    text = None if change is None else "\n".join([*change.imports, change.code])
    assert text == case.fixed

    held = FixedSource(source.site.file, source.site.line, source.source)
    one, other = runs(stage, ProbeRequest(fixed=(held,)), path)
    assert one == other and one.status == 0
    if change is not None:
        one, other = runs(stage, ProbeRequest(changes=(change,)), path)
        assert one == other and one.status == 0


def test_every_line_that_led_there_gets_a_seed(tmp_path: Path) -> None:
    stage, path = staged(tmp_path, "a = Sampler()\nb = Sampler()\nprint(a.draw(), b.draw())\n")
    (source,) = stage.differing(PYTHONPATH=path)
    change = code_fix(source)

    assert change is not None
    assert change.code == "a = Sampler(random_state=0)\nb = Sampler(random_state=0)"


def test_the_line_that_declares_a_seed_comes_before_one_that_would_only_pass_it_on(tmp_path: Path) -> None:
    stage, path = staged(tmp_path, "e = eager()\nprint(e.reset())\n")
    (source,) = stage.differing(PYTHONPATH=path)

    assert [led.site.frame.code for led in source.led_by] == ["print(e.reset())", "e = eager()"]
    change = code_fix(source)
    assert change is not None and change.code == "print(e.reset(seed=0))"


def test_what_only_its_method_seeds_is_named_where_it_is_drawn_from(tmp_path: Path) -> None:
    stage, path = staged(tmp_path, "e = Spacious()\nprint(e.space.sample())\n")
    (source,) = stage.differing(PYTHONPATH=path)

    assert [(led.site.frame.code, led.method) for led in source.led_by] == [("print(e.space.sample())", "seed")]
    change = code_fix(source)
    assert change is not None and change.code == "e = Spacious()\ne.space.seed(0)"


def test_what_a_function_draws_is_not_seeded_by_a_method_of_its_argument(tmp_path: Path) -> None:
    stage, path = staged(tmp_path, "e = Spacious()\nprint(scattered(e.space))\n")
    (source,) = stage.differing(PYTHONPATH=path)

    assert [led.method for led in source.led_by] == [None]


def test_what_a_method_of_the_made_object_seeds_is_named_where_it_is_made_with_that_method(tmp_path: Path) -> None:
    stage, path = staged(tmp_path, "s = Simulation()\nprint(collected(s))\n")
    (source,) = stage.differing(PYTHONPATH=path)

    (led,) = source.led_by
    assert (led.site.frame.code, led.is_declared, led.method, led.is_made) == (
        "s = Simulation()", False, "set_seed", True
    )  # fmt: skip


def test_what_a_method_of_an_object_that_holds_others_seeds_is_named_where_that_object_is_made(tmp_path: Path) -> None:
    program = "fleet = Fleet([lambda: made('x') for _ in range(2)])\nprint(collected(fleet))\n"
    stage, path = staged(tmp_path, program)
    (source,) = stage.differing(PYTHONPATH=path)

    [(line, method)] = {(led.site.frame.code, led.method) for led in source.led_by}
    assert (line, method) == (program.splitlines()[0], "set_seed")
    change = code_fix(source)
    assert change is not None and change.code.splitlines()[1] == "fleet.set_seed(0)"


def test_a_seeded_library_is_not_a_source(tmp_path: Path) -> None:
    stage, path = staged(
        tmp_path, "s = Sampler(random_state=3)\nprint(s.draw(), *Pipeline('abc').shuffle(2, seed=1))\n"
    )

    assert stage.differing(PYTHONPATH=path) == []


def test_a_library_sees_the_frame_that_calls_it(tmp_path: Path) -> None:
    program = "def own():\n    return caller()\nprint(own())\nclass A(Sampler):\n    def __init__(self):\n        super().__init__()\nA()\n"
    stage, path = staged(tmp_path, program)
    (tmp_path / "notes").mkdir()
    ended = stage.probed(request=ProbeRequest(notes=tmp_path / "notes"), PYTHONPATH=path)

    assert ended == stage.plain(PYTHONPATH=path) == Ended(0, "own\n", "")


def test_an_object_made_by_a_library_is_not_kept_alive(tmp_path: Path) -> None:
    program = "import weakref\ns = Sampler()\ngone = weakref.ref(s)\ndel s\nprint(gone())\n"
    stage, path = staged(tmp_path, program)
    (tmp_path / "notes").mkdir()

    assert stage.probed(request=ProbeRequest(notes=tmp_path / "notes"), PYTHONPATH=path).stdout == "None\n"


def test_only_the_line_that_passes_a_varying_seed_is_reported(tmp_path: Path) -> None:
    program = "import os\na, b = [Sampler(random_state=n) for n in (1, 2)]\nc = Sampler(random_state=os.getpid())\nprint(a.draw(), b.draw(), c.draw())\n"
    stage, path = staged(tmp_path, program)
    sources: list[Source] = [one for one in stage.differing(PYTHONPATH=path) if one.is_in_library]

    assert [led.site.frame.code for one in sources for led in one.led_by] == ["c = Sampler(random_state=os.getpid())"]
    # The program passes a seed itself, and that value varies.
    assert code_fix(sources[0]) is None


@pytest.mark.parametrize(
    ("program", "unseeded"),
    [
        ("import drawing\nprint(drawing.choice(9))\n", ["numpy"]),
        ("import drawing, numpy\nnumpy.random.seed(1)\nprint(drawing.choice(9))\n", []),
        ("import drawing\nprint(drawing.pick(range(9)))\n", ["python"]),
        ("import drawing, random\nrandom.seed(1)\nprint(drawing.pick(range(9)))\n", []),
        ("import drawing\nprint(drawing.pick(range(9)), drawing.choice(9))\n", ["numpy", "python"]),
        ("import drawing, numpy.random, random\n", []),
    ],
)
def test_global_generators_that_a_library_draws_from_unseeded_are_noted(
    program: str, unseeded: list[str], tmp_path: Path
) -> None:
    library = (
        "import random\n\ndef choice(n):\n    import numpy\n    return numpy.random.choice(n)\n\npick = random.choice\n"
    )
    stage = Stage(tmp_path, program)
    packages = stage.folder / "site-packages"
    packages.mkdir()
    (packages / "drawing.py").write_text(library, encoding="utf-8")
    noted = [stage.noted(PYTHONPATH=os.pathsep.join([str(packages), *sys.path])) for _ in range(2)]
    assert unseeded_generators(*noted) == unseeded

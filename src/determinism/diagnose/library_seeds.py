"""What is said of a library that seeds itself with what differs in each run, and the change that gives it a seed."""

from __future__ import annotations

import ast
from pathlib import Path, PurePath

from determinism.diagnose.program_text import Change, ProgramText, Unfixable, keyword_of, last_name
from determinism.diagnose.sources import LedBy, Source
from determinism.trace.names import Frame

CAUSE = "outside-entropy"

_GENERATORS = ("rng", "generator")
"""Parameters that take a generator rather than a seed."""
_MADE_BY = {
    "Random": ("random.Random(0)", "import random"),
    "RandomState": ("numpy.random.RandomState(0)", "import numpy"),
    "manual_seed": ("torch.Generator().manual_seed(0)", "import torch"),
}
"""By the function that makes or seeds a library's generator, one that has a seed; else it is NumPy's newer one."""
_NUMPY = ("numpy.random.default_rng(0)", "import numpy")
_MOST_LINES = 3


def seeded_calls(text: ProgramText, source: Source) -> Change:
    """The calls of the program that led to a library's generators get a seed.

    Args:
        text: The module of the first of these calls.
        source: What the library used.

    Raises:
        Unfixable: None of them is known to take a seed, or one has been given something.
    """
    edits, imports = [], []
    for led in source.led_by:
        call = text.at(led.site) if led.site.file == source.led_by[0].site.file else None
        if led.argument is None or not isinstance(call, ast.Call):
            continue
        value, needed = _value(led.argument, source)
        given = keyword_of(call, led.argument)
        if given is None:
            edits.append(text.last_argument(call, f"{led.argument}={value}"))
        elif isinstance(given.value, ast.Constant) and given.value.value is None:
            edits.append(text.replaced(given.value, value))
        else:
            raise Unfixable
        imports += [needed] * bool(needed)
    if not edits:
        raise Unfixable
    return edits, tuple(dict.fromkeys(imports))


def _value(argument: str, source: Source) -> tuple[str, str]:
    """What is given for a parameter, and the import that it needs."""
    if argument not in _GENERATORS:
        return "0", ""
    library = ProgramText(Path(source.site.file).read_bytes(), source.site.file)
    call = library.at(source.site)
    return _MADE_BY.get(last_name(call.func) if isinstance(call, ast.Call) else "", _NUMPY)


def library_sites(source: Source) -> tuple[Frame, ...]:
    """The lines of the program that led to what a library used, and the library's own."""
    return (*(led.site.frame for led in source.led_by[:_MOST_LINES]), source.site.frame)


def library_evidence(source: Source) -> tuple[str, ...]:
    """Sentences on what a library did, and which lines of the program led there."""
    did = (
        "makes a generator without a seed"
        if source.source == "unseeded-generator"
        else "seeds a generator with another value in each run"
    )
    lines = list(dict.fromkeys(_place(led) for led in source.led_by))
    more = len(lines) - _MOST_LINES
    named = [*lines[:_MOST_LINES], *([f"{more} more lines"] if more > 0 else [])]
    led = f"; {' and '.join(named)} led there" if named else ""
    return (f"{source.site.function} at {source.site.file}:{source.site.line} {did}{led}.",)


def _place(led: LedBy) -> str:
    return f"{PurePath(led.site.file).name}:{led.site.frame.line}"

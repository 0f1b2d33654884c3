"""A framework of a few ops on lists of numbers, for tests of how programs are launched: it is imported at once.

What runs is shown to `on_op` and `on_step`, which its recorder sets; that writes real records.
"""

import hashlib
import json
import os
import random
import struct

__version__ = "1.0"

_generator = random.Random()
on_op = None
"""Called with the name, the inputs, the outputs, the digests of generator states that an op drew from, and its arguments as text."""
on_step = None
"""Called with the parameters, by name, when a step ends."""


class Array:
    """Numbers, which never change."""

    made_by = None
    """What a recorder knows of it."""

    def __init__(self, numbers):
        self.numbers = tuple(numbers)

    @property
    def bytes(self):
        return struct.pack(f"<{len(self.numbers)}d", *self.numbers)

    def item(self):
        """The only number; from here on Python has it."""
        _show("tiny::item", [self], [])
        (number,) = self.numbers
        return number


def _show(op, inputs, outputs, drawn=(), arguments=""):
    if on_op is not None:
        on_op(op, inputs, outputs, drawn, arguments)


def _made(op, inputs, numbers, **facts):
    output = Array(numbers)
    _show(op, inputs, [output], **facts)
    return output


def manual_seed(seed):
    _generator.seed(seed)


def seed():
    """Take a seed from the operating system."""
    _generator.seed()


def randn(count):
    state = hashlib.md5(repr(_generator.getstate()).encode(), usedforsecurity=False).digest()
    return _made("tiny::randn", [], [_generator.gauss(0.0, 1.0) for _ in range(count)], drawn=[state])


def full(count, value):
    return _made("tiny::full", [], [value] * count, arguments=f"value={value}")


def multiply(first, second):
    return _made("tiny::multiply", [first, second], map(float.__mul__, first.numbers, second.numbers))


def subtract(first, second):
    return _made("tiny::subtract", [first, second], map(float.__sub__, first.numbers, second.numbers))


def mean(array):
    return _made("tiny::mean", [array], [sum(array.numbers) / len(array.numbers)])


def step(**parameters):
    """A step of training ended with these parameters."""
    if on_step is not None:
        on_step(parameters)


def save(parameters, path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: array.numbers for name, array in parameters.items()}, file)


def load(path):
    with open(path, encoding="utf-8") as file:
        return {name: _made("tiny::load", [], numbers) for name, numbers in json.load(file).items()}


if "DETERMINISM_RUN" in os.environ:
    # Frameworks that recording knows are waited for; this one says itself that it is there.
    from determinism.import_hook import after_import
    from determinism.launch import child
    from determinism.launch.notes import is_requested, note_not_recorded

    if is_requested("recording"):
        after_import(__name__, child._starter(__name__, "tiny_recorder"), note_not_recorded)

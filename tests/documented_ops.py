"""Reads the lists in the docstring of `torch.use_deterministic_algorithms`."""

from __future__ import annotations

import re
from typing import NamedTuple

from determinism.knowledge.names import key_of

_HEADS = {
    "will act\n    deterministically when ``mode=True``": "deterministic",
    "will throw a\n    :class:`RuntimeError` when ``mode=True``": "raises",
}
_NAME = re.compile(r"torch(?:\.\w+)+")
_MARKS = re.compile(
    r"accumulate=\w+|mode='\w+'|reduce='\w+'|quantized|weights|indices output|sparse|dimension is one|larger than one"
)
_CONDITIONS = {
    "indices output": "indices",
    "dimension is one": "one dimension",
    "larger than one": "two or more dimensions",
}


class Documented(NamedTuple):
    """One entry of the lists."""

    entry: str
    verdict: str
    names: tuple[str, ...]
    devices: tuple[str | None, ...]
    direction: str
    conditions: tuple[str, ...]

    @property
    def keys(self) -> set[str]:
        """The keys of its names."""
        return {key_of(name) for name in self.names}


def parsed(entry: str, verdict: str) -> Documented:
    """What an entry says."""
    text = entry.replace("``", "").replace("`src`", "src")
    subject = re.split(r" when | with | will |, when ", text)[0]
    devices = tuple(device.lower() for device in ("CPU", "CUDA", "MPS") if device in text)
    direction = "backward" if re.search("differentiate|requires grad|backward", text) else "forward"
    marks = () if "not quantized" in text else tuple(_CONDITIONS.get(mark, mark) for mark in _MARKS.findall(text))
    return Documented(entry, verdict, tuple(_NAME.findall(subject)), devices or (None,), direction, marks)


def entries_of(docstring: str) -> list[Documented]:
    """The entries of both lists of a docstring."""
    found = []
    for head, verdict in _HEADS.items():
        block = docstring.partition(head)[2].partition("\n    In addition")[0].partition("\n    The following")[0]
        for item in re.split(r"\n {8}\* ", block)[1:]:
            text = " ".join(re.sub(r":\w+:`([^`]+)`", r"\1", item.replace("``", "")).split())
            found.append(parsed(text, verdict))
    return found

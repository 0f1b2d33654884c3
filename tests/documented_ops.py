"""Reads the lists in the docstring of `torch.use_deterministic_algorithms`.

Names, conditions and verdicts are kept as codes; the sentences are PyTorch's and are not copied.
"""

from __future__ import annotations

import inspect
import re
from itertools import product
from typing import NamedTuple

from determinism.knowledge.entries import Status, key_of

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_HEADS = {
    "operations will act deterministically when `": "deterministic",
    "operations will throw a :class:`RuntimeError` when `": "raises",
    "will be raised from these operations when called with CUDA tensors": VARIABLE,
}
_NAME = re.compile(r"torch(?:\.\w+)+")
_CONDITIONS = {
    r"accumulate=\w+": None,
    r"mode='\w+'": None,
    r"reduce='\w+'": None,
    r"(?<=\\)'mean'": "reduce='mean'",
    r"not quantized": "not quantized",
    r"(?<!not )quantized": "quantized",
    r"weights": "weights",
    r"indices output": "indices",
    r"sparse": "sparse",
    r"dimension is one": "one dimension",
    r"larger than one": "two or more dimensions",
    r"list of tensors": "list of tensors",
    r"src type is Tensor": "src is a tensor",
    r"floating point or complex(?! values)(?! dtype tensors)|floating or complex": "floating point or complex",
    r"(?<= )- linear": "mode='linear'",
    r"(?<= )- bilinear": "mode='bilinear'",
    r"(?<= )- bicubic": "mode='bicubic'",
    r"(?<= )- trilinear": "mode='trilinear'",
    r"in some cases": "in some cases",
}


class Documented(NamedTuple):
    """One entry of the lists."""

    names: tuple[str, ...]
    devices: tuple[str | None, ...]
    direction: str
    conditions: tuple[str, ...]
    verdict: str

    @property
    def keys(self) -> set[str]:
        """The keys of the names."""
        return {key_of(name) for name in self.names}

    @property
    def cases(self) -> list[tuple[str, ...]]:
        """The combinations of conditions under which it holds: one for each of several values of an argument."""
        by_argument: dict[str, list[str]] = {}
        for condition in self.conditions:
            by_argument.setdefault(condition.partition("=")[0], []).append(condition)
        return list(product(*by_argument.values()))

    def __str__(self) -> str:
        places = [device for device in self.devices if device]
        return " ".join((*self.names, *places, self.direction, *self.conditions, self.verdict))


def holds_for(one: Status, conditions: tuple[str, ...]) -> bool:
    """Whether a status applies to these conditions."""
    text = f"{one.condition or ''}, {one.dtype or ''}"
    return all(part in text for part in conditions)


def _plain(markup: str) -> str:
    """Return the text of an item on one line, without docutils markup."""
    return " ".join(re.sub(r":\w+:`([^`]+)`", r"\1", markup).replace("`", "").split())


def _parsed(text: str, verdict: str) -> Documented:
    """Parse an item of a list."""
    subject = re.split(r" when | with | will |, when | backward ", text)[0]
    devices = tuple(device.lower() for device in ("CPU", "CUDA", "MPS") if device in text)
    if verdict == VARIABLE:
        devices = ("cuda",)
    direction = "backward" if re.search("differentiate|requires grad|backward", text) else "forward"
    conditions = [code or found[0] for pattern, code in _CONDITIONS.items() for found in re.finditer(pattern, text)]
    return Documented(
        tuple(_NAME.findall(subject)), devices or (None,), direction, tuple(dict.fromkeys(conditions)), verdict
    )


def entries_of(docstring: str) -> list[Documented]:
    """Return the entries of the lists in a docstring."""
    found = []
    # From Python 3.13 on, the compiler has already removed the indentation.
    for paragraph in re.split(r"\n\n(?=\S)", inspect.cleandoc(docstring)):
        head, _, items = paragraph.partition("\n\n")
        for mark, verdict in _HEADS.items():
            if mark in " ".join(head.split()):
                found += [_parsed(_plain(item), verdict) for item in re.split(r"(?:^|\n) {4}\* ", items)[1:]]
    return found

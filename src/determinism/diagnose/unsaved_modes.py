"""Tells whether a model goes on in another mode: in evaluation instead of training, or the other way round."""

from __future__ import annotations

from typing import NamedTuple

from determinism.comparison.divergence import Divergence
from determinism.comparison.first_step import of_step
from determinism.comparison.origins import entry
from determinism.comparison.resumed import ResumedProcess
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind, Phase, Role


class Mode(NamedTuple):
    """How the modes of a model differ between two runs."""

    is_evaluating: bool
    """Whether it is the resumed run that goes on in evaluation mode."""
    modules: tuple[str, ...]
    """Paths of the modules that show it, in order."""
    site: Frame | None
    """The line that calls the first of them."""

    @property
    def fix(self) -> str:
        """What to do about it."""
        names = ", ".join(repr(name) if name else "the model itself" for name in self.modules[:3])
        more = f" and {len(self.modules) - 3} more" if len(self.modules) > 3 else ""
        where = "" if self.site is None else f", called at {self.site.file}:{self.site.line}"
        does = "draws random numbers or takes the statistics of the batch"
        if self.is_evaluating:
            return (
                f"The full run {does} in {names}{more}{where}, and the resumed run does not: it seems to go on in evaluation mode. Call "
                "model.train() after loading: no checkpoint holds the mode."
            )
        return (
            f"The resumed run {does} in {names}{more}{where}, and the full run does not: there it seems to be in evaluation mode. Call eval() "
            "on it after loading, too: no checkpoint holds the mode."
        )


def mode_apart(process: ResumedProcess) -> Mode | None:
    """How the modes differ in the step of the first divergence; None if they do not, or if something else departs.

    A module that drops out draws random numbers in training, and one that normalises batches is told that it trains.

    Args:
        process: How a process of the resumed run compares.

    Raises:
        TraceError: A trace is damaged.
    """
    divergence, parts = process.result.divergence, process.parts
    if divergence is None or parts is None or divergence.phase != Phase.FORWARD.label or not _may_follow(divergence):
        return None
    sides = [_training(part, divergence.step) for part in parts]
    for is_evaluating, mine, other in ((True, sides[0], sides[1]), (False, sides[1], sides[0])):
        alone = tuple(module for module in mine if module not in other)
        # Layers that are left out at random are so in both runs.
        if alone and other.keys() <= mine.keys() and (divergence.kind is not Kind.RNG or divergence.module in alone):
            return Mode(is_evaluating, alone, mine[alone[0]])
    return None


def _may_follow(divergence: Divergence) -> bool:
    return divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT, Kind.DATA, Kind.RNG, Kind.ORDER)


def _training(process: ProcessTrace, step: int) -> dict[str, Frame | None]:
    """The modules that do in a step what modules do in training only, with the lines that call them."""
    chunk = of_step(process, step)
    found: dict[str, Frame | None] = {}
    if chunk is None:
        return found
    starts = chunk.children["generators"].starts
    for row in range(chunk.rows):
        if chunk.columns["phase"][row] != Phase.FORWARD or chunk.columns["role"][row] != Role.OP:
            continue
        if chunk.columns["module"][row] < 0:
            continue
        one = entry(process, chunk, row)
        if starts[row + 1] > starts[row] or ("batch_norm" in one.op and "training=True" in one.arguments):
            stack = process.names.stack(int(chunk.columns["stack"][row]))
            found.setdefault(one.module or "", stack[0] if stack else None)
    return found

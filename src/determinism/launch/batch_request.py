"""What is to be run with batches of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from determinism.errors import UsageError

PLACE = "{batch}"
DEFAULT_SIZES = (1, 16, 64)


@dataclass(frozen=True)
class BatchRequest:
    """A program whose command takes the size of a batch."""

    program: Sequence[str]
    """Its words; `{batch}` stands for the size."""
    sizes: tuple[int, ...] = DEFAULT_SIZES
    output: Path | None = None
    keep: bool = False
    explain: bool | None = None
    """Whether further runs may be made that try settings; None: if a run took less than a minute."""

    def __post_init__(self) -> None:
        """See that there is something to compare.

        Raises:
            UsageError: There is not.
        """
        sizes = ",".join(map(str, self.sizes))
        if not any(PLACE in word for word in self.program):
            raise UsageError(
                "batch-place-missing",
                f"The command holds no {PLACE}, so nothing was run: each size needs a run of its own. Write {PLACE} where the size of a "
                f"batch stands: determinism check-batch --sizes {sizes} -- python predict.py --batch-size {PLACE}",
            )
        if len(set(self.sizes)) < 2 or min(self.sizes) < 1:
            raise UsageError(
                "batch-sizes",
                f"--sizes {sizes} gives no two sizes of 1 or more, so there is nothing to compare. Give two or more: --sizes 1,16,64",
            )

    def command(self, size: int) -> list[str]:
        """The words for batches of a size."""
        return [word.replace(PLACE, str(size)) for word in self.program]

"""Seeds Python's and NumPy's global generators before the program can draw from them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def seed_python() -> None:
    """Give `random` a start of its own."""
    import random

    random.seed(0)


def seed_numpy(numpy: ModuleType) -> None:
    """Give `numpy.random` a start of its own.

    Args:
        numpy: The module.
    """
    numpy.random.seed(0)

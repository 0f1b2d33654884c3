"""What stands for the state of the generator that a random op drew from."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.digest import digest_many
from determinism.frameworks.made_values import Value
from determinism.frameworks.tensorflow import op_traits


def drawn_from(kind: str, read: Sequence[Value], made: Sequence[tuple[int, bytes]]) -> Sequence[bytes]:
    """The digest of the state; none for an op that draws nothing.

    Where an op is given its seed, that is the state. The kernels of the other ops keep theirs where nobody can look; what they draw
    follows from it alone, so it stands for it.

    Args:
        kind: The type of the op.
        read: What it read.
        made: Layout and digest of what it made.
    """
    if not op_traits.is_random(kind):
        return ()
    if op_traits.takes_its_seed(kind):
        return [digest_many(value.digest for value in read)] if read else ()
    return [digest_many(digest for _, digest in made)] if made else ()

"""What of a program could not be looked at for sources, as it is told where no cause was found."""

from __future__ import annotations

from pathlib import PurePath

from determinism.diagnose.trial import Trial

_MOST_NAMED = 3


def unseen_text(probed: Trial) -> str:
    """Sentences on the user's modules in which nothing could be noted, each after a space; none if there are none.

    Args:
        probed: Runs with the sources noted.
    """
    if probed.failure is not None:
        return f" What the program takes from outside could not be looked at: {probed.failure.rstrip('.')}."
    named = [f" Of {PurePath(one.file).name} nothing could be noted: {one.reason}." for one in probed.unprobed]
    more = len(named) - _MOST_NAMED
    return "".join(named[:_MOST_NAMED]) + (f" So it is of {more:,} more." if more > 0 else "")

"""What is said of an error that should not have come: a defect of ours."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from determinism.errors import DeterminismError

TRACEBACK_VARIABLE = "DETERMINISM_TRACEBACK"


def defect(error: Exception, consequence: str) -> DeterminismError:
    """The message for an error that nobody foresaw.

    Args:
        error: What was raised.
        consequence: What could not be done.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return DeterminismError(
        "internal-error",
        f"{type(error).__name__}{place}: {error}. This is a defect of determinism, so {consequence}; traces that were "
        f"made are kept. Please report it with what {TRACEBACK_VARIABLE}=1 prints.",
    )

"""What a process is called among those that were started beside it, in every run alike."""

from __future__ import annotations

import os
import re
import sys


def own_name(parent_key: str) -> str | None:
    """What this process is called among its siblings; None if it has no name.

    Args:
        parent_key: Key of the process that started this one.
    """
    rank = os.environ.get("RANK", "")
    # The children of a rank inherit its variables.
    if rank.isdigit() and f"rank-{rank}" not in parent_key.split("."):
        return f"rank-{rank}"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return None
    name = str(multiprocessing.current_process().name)
    return None if name == "MainProcess" else re.sub(r"[^A-Za-z0-9-]", "-", name)

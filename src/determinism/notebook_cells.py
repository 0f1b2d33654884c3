"""What the cells of a notebook are called: `In[3]` in every run, where IPython's own name for their file has the number of the process."""

from __future__ import annotations

import os
import re
import sys

_OF_KERNEL = re.compile(re.escape(os.sep) + r"ipykernel_\d+" + re.escape(os.sep))


def is_cell(path: str) -> bool:
    """Whether a code object's file is a cell that IPython runs, in a terminal or for a notebook."""
    return path.startswith("<ipython-input-") or _OF_KERNEL.search(path) is not None


def cell_name(path: str) -> str | None:
    """What a cell is called: by the number of the execution, `In[3]`; None for files that are no cells.

    Args:
        path: As the code object has it.
    """
    if not is_cell(path):
        return None
    module = sys.modules.get("IPython.core.getipython")
    shell = None if module is None else module.get_ipython()
    try:
        named = None if shell is None else shell.compile.format_code_name(path)
    except Exception:
        named = None
    return str(named[1]) if named else _OF_KERNEL.sub(f"{os.sep}ipykernel{os.sep}", path)

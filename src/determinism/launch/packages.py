"""What the recorder needs in the program's own interpreter."""

from __future__ import annotations

import shlex

OLDEST_PYTHON = (3, 11)

RECORDER_PACKAGES = ("numpy", "pyarrow", "xxhash")


def install_line(interpreter: str) -> str:
    """The command that installs the packages for an interpreter."""
    return f"{shlex.quote(interpreter)} -m pip install {' '.join(RECORDER_PACKAGES)}"

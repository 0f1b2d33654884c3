"""What the recorder needs in the program's own interpreter."""

from __future__ import annotations

import shlex

OLDEST_PYTHON = (3, 11)

RECORDER_PACKAGES = ("numpy", "pyarrow", "xxhash")


def install_line(interpreter: str) -> str:
    """The command that installs the packages for an interpreter."""
    return f"{shlex.quote(interpreter)} -m pip install {' '.join(RECORDER_PACKAGES)}"


def unusable(interpreter: str, reason: str) -> str:
    """What to say where a package is there and cannot be imported, and what to do.

    Args:
        interpreter: The Python that cannot.
        reason: What the import said.
    """
    line = install_line(interpreter)
    if "pyarrow" in reason and "NumPy" in reason:
        # TensorFlow up to 2.17 needs a NumPy before 2, and pyarrow 26 does not say to pip that it cannot do with it.
        line = f"{shlex.quote(interpreter)} -m pip install 'pyarrow<26'"
    return f"{reason.rstrip('.')}. Install versions that go together:\n{line}"

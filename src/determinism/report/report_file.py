"""Writes a report to the file that an option names."""

from __future__ import annotations

import os
from pathlib import Path

from determinism.errors import UsageError


def write_report(path: Path, text: str, option: str) -> None:
    """Write a report; what stood in the file before is replaced, as a whole or not at all.

    Args:
        path: The file. A link, a device or a pipe is written to and stays what it is.
        text: What to write.
        option: The option that named the file, such as `--json`.

    Raises:
        UsageError: The file cannot be written; what stood there before is unharmed.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # Replacing a link, a device or a pipe would destroy it: `--json /dev/null` as root.
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "report-unwritable",
            f"The report cannot be written to {path} ({reason}), so {option} made nothing. "
            f"Give {option} a file in a folder that exists and that you may write to.",
        ) from None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

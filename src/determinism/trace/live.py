"""Takes a still picture of a process that is being recorded, which can be read like any other trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from determinism.trace import schema
from determinism.trace.spool_file import steady_bytes


def take_picture(folder: Path, picture: Path) -> bool:
    """Make a folder that holds what a process has recorded until now.

    The stream of records only grows, so it is linked; the rest is copied in the order in which nothing can be missed.
    Each look at the picture gives at least the records that the first one gave.

    Args:
        folder: Of the process.
        picture: The folder to be made; what lies there is replaced.

    Returns:
        Whether there was anything to take: the process may not have begun yet.

    Raises:
        OSError: The picture cannot be written.
    """
    if not (folder / schema.PROCESS_FILE).exists():
        return False
    shutil.rmtree(picture, ignore_errors=True)
    picture.mkdir(parents=True)
    try:
        _link(folder / schema.RECORDS_FILE, picture / schema.RECORDS_FILE)
    except FileNotFoundError:
        return False
    spool = steady_bytes(folder / schema.SPOOL_FILE)
    if spool is not None:
        (picture / schema.SPOOL_FILE).write_bytes(spool)
    # Names move from the pending ones into the stream, so those that move in between are in the stream.
    for name in (schema.PENDING_NAMES_FILE, schema.NAMES_FILE, schema.PROCESS_FILE):
        try:
            shutil.copyfile(folder / name, picture / name)
        except FileNotFoundError:
            # It is removed when the process ends.
            continue
    return True


def _link(file: Path, link: Path) -> None:
    """Give a file another name; what a reader of traces opens is never a symbolic link."""
    try:
        os.link(file, link)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copyfile(file, link)

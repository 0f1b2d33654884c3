"""A copy of the working directory that is made anew for each run, so that no run sees what another one left there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from determinism.errors import LaunchError

MOST_BYTES = 4 << 30
"""More than this is data that belongs elsewhere, and copying it for each run would take longer than the run."""

_LEFT_OUT = frozenset({".determinism", "__pycache__"})
_LINKED = frozenset({".git"})
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")


class FreshCopy:
    """A copy of a folder at one place, which every run finds as the first one did; a context that removes it.

    Relative paths lead to the same things as ever, also those with `..`: around the copy stand links to what stands
    around the folder. Symbolic links are kept; those that lead within the folder lead within the copy. Virtual
    environments and `.git` are links to the original.
    """

    def __init__(self, original: Path, left_out: Path) -> None:
        """Nothing is copied yet.

        Args:
            original: The folder, absolute.
            left_out: Where the traces go, absolute; it is not copied.
        """
        self.original = original
        self._left_out = left_out

    def __enter__(self) -> Self:
        """Make the place for the copy.

        Raises:
            LaunchError: It cannot be made.
        """
        try:
            self._root = Path(tempfile.mkdtemp(prefix="determinism-")).resolve()
            self.folder = self._root / self.original.relative_to(self.original.anchor)
            self._link_surroundings()
        except OSError as error:
            raise _failed(self.original, error) from None
        return self

    def __exit__(self, *exception: object) -> None:
        _remove(self._root)

    def renew(self) -> None:
        """Make the copy again, from what the folder holds now.

        Raises:
            LaunchError: There is too much to copy, or something cannot be copied.
        """
        try:
            self._check_size()
            _remove(self.folder)
            self._copy(self.original, self.folder)
        except OSError as error:
            raise _failed(self.original, error) from None

    def _link_surroundings(self) -> None:
        for inner in [self.original, *self.original.parents][:-1]:
            place = self._root / inner.parent.relative_to(inner.anchor)
            place.mkdir(parents=True, exist_ok=True)
            for entry in _entries(inner.parent):
                if entry.name != inner.name and Path(entry.path) != self._root:
                    (place / entry.name).symlink_to(entry.path)

    def _check_size(self) -> None:
        size = sum(_sizes(self.original, self._is_copied))
        room = shutil.disk_usage(self._root).free
        if size <= min(MOST_BYTES, room):
            return
        limit = f"the {room:,} bytes that {self._root} has left" if room < MOST_BYTES else f"{MOST_BYTES:,} bytes"
        raise LaunchError(
            "copy-too-large",
            f"{self.original} holds {size:,} bytes, more than {limit}, so it was not copied and the run was not made. Keep "
            "data elsewhere and link to it, which the copy follows, or remove what a run leaves with --before 'rm ...' "
            "instead of --fresh-copy.",
        )

    def _is_copied(self, entry: os.DirEntry[str]) -> bool:
        is_ours = Path(entry.path) in (self._left_out, self._root)
        return entry.name not in _LEFT_OUT and not is_ours and not _is_linked(entry)

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in os.scandir(source):
            to = target / entry.name
            if entry.is_symlink():
                to.symlink_to(self._retargeted(Path(entry.path)))
            elif _is_linked(entry):
                to.symlink_to(entry.path)
            elif not self._is_copied(entry):
                continue
            elif entry.is_dir():
                self._copy(Path(entry.path), to)
            elif entry.is_file():
                # Pipes and sockets belong to the processes that made them.
                shutil.copy2(entry.path, to)
        shutil.copystat(source, target)
        target.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)

    def _retargeted(self, link: Path) -> Path:
        """Where the copy of a link leads: into the copy, if the link leads into the folder."""
        target = Path(os.path.normpath(link.parent / link.readlink()))
        if target.is_relative_to(self.original):
            return self.folder / target.relative_to(self.original)
        return target


def _is_linked(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    return entry.name in _LINKED or any(
        os.path.exists(os.path.join(entry.path, mark)) for mark in _MARKS_OF_ENVIRONMENTS
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, as far as it may be listed."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _sizes(folder: Path, is_copied: Callable[[os.DirEntry[str]], bool]) -> Iterator[int]:
    for entry in os.scandir(folder):
        if entry.is_symlink() or not is_copied(entry):
            continue
        if entry.is_dir():
            yield from _sizes(Path(entry.path), is_copied)
        elif entry.is_file():
            yield entry.stat().st_size


def _remove(folder: Path) -> None:
    """Remove a copy with whatever the program made in it; links are not followed."""
    for place, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(place, name)
            if not os.path.islink(inner):
                # A folder that may not be written to would keep its content.
                os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _failed(original: Path, error: OSError) -> LaunchError:
    return LaunchError(
        "copy-failed",
        f"{original} cannot be copied ({error}), so the run was not made. Mend that, or remove what a run leaves with "
        "--before 'rm ...' instead of --fresh-copy.",
    )

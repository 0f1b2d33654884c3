"""The folder that the traces and logs of a check go to."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

from determinism.errors import TraceError

DEFAULT_FOLDER = Path(".determinism")
_IGNORE = ".gitignore"


class OutputFolder:
    """What one check makes: per run a trace, the log of its output, and the log of the command that prepared it."""

    def __init__(self, output: Path | None) -> None:
        """Make the folder.

        Args:
            output: Where; None for a new one below `.determinism`.

        Raises:
            TraceError: It is already there, or cannot be made.
        """
        self._is_default = output is None
        self.path = _new_folder(output)

    def trace(self, name: str) -> Path:
        """The trace of a run."""
        return self.path / name

    def log(self, name: str) -> Path:
        """What a run printed."""
        return self.path / f"{name}.log"

    def preparation_log(self, name: str) -> Path:
        """What the command before a run printed."""
        return self.path / f"{name}.before.log"

    def discard(self, name: str, *, with_log: bool = True) -> None:
        """Remove what belongs to a run, and nothing else: the program may have put something there as well."""
        shutil.rmtree(self.trace(name), ignore_errors=True)
        self.preparation_log(name).unlink(missing_ok=True)
        if with_log:
            self.log(name).unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        """Remove the folder if it holds nothing; of the default one also the folder around it."""
        for folder in [self.path, self.path.parent] if self._is_default else [self.path]:
            try:
                if self._is_default and [file.name for file in folder.iterdir()] == [_IGNORE]:
                    (folder / _IGNORE).unlink()
                folder.rmdir()
            except OSError:
                # Traces of other checks are still there.
                return


def _new_folder(output: Path | None) -> Path:
    folder = output if output is not None else DEFAULT_FOLDER / time.strftime("%Y-%m-%d-%H%M%S")
    folder = folder.absolute()
    if output is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceError(
            "output-exists",
            f"{output} already exists and is not empty, so nothing was run. Give another folder with --output.",
        )
    try:
        if output is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        _ignore(folder.parent)
        for unique in itertools.chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))):
            try:
                unique.mkdir()
            except FileExistsError:
                continue
            return unique
    except OSError as error:
        raise TraceError(
            "output-unwritable",
            f"{folder} cannot be made ({error.strerror}), so nothing was run. Give another folder with --output.",
        ) from None
    raise AssertionError("the count of folders has no end")


def _ignore(folder: Path) -> None:
    """Traces are large, and none of a repository's business."""
    file = folder / _IGNORE
    if not file.exists():
        file.write_text("*\n", encoding="utf-8")

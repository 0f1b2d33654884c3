"""What is to be resumed, and how: three commands, or one with places to fill in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from determinism.errors import UsageError

RUNS = ("full", "first", "resumed")
_PLACES = ("{steps}", "{save}", "{load}")


@dataclass(frozen=True)
class ResumeRequest:
    """The commands of the three runs, or one for all of them."""

    full: str | None = None
    """A command as a shell takes it; likewise the next two."""
    first: str | None = None
    resumed: str | None = None
    program: Sequence[str] = ()
    """One command with `{steps}`, `{save}` and `{load}` in its words, instead of these three."""
    steps: int = 8
    """How many steps the full run makes."""
    at: int | None = None
    """After how many of them the first run saves; None: after half of them."""
    output: Path | None = None
    keep: bool = False
    allow_failure: bool = False
    explain: bool | None = None
    """Whether further runs may be made that try a fix; None: if a run took less than a minute."""

    def commands(self, checkpoints: Path) -> dict[str, list[str]]:
        """The words of each run's command.

        Args:
            checkpoints: Folder for what the runs save, where one command stands for all of them.

        Raises:
            UsageError: They are not complete, contradict each other, or cannot be taken apart.
        """
        given = {name: getattr(self, name) for name in RUNS}
        if self.program:
            if any(given.values()):
                raise _incomplete("Both three commands and one for all of them were given")
            return self._filled_in(checkpoints)
        lacking = [f"--{name}" for name, command in given.items() if not command]
        if lacking:
            raise _incomplete(f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing")
        return {name: _words(name, command) for name, command in given.items()}

    def _filled_in(self, checkpoints: Path) -> dict[str, list[str]]:
        lacking = [place for place in _PLACES if not any(place in word for word in self.program)]
        if lacking:
            raise _incomplete(f"The command holds no {' and no '.join(lacking)}")
        at = self.steps // 2 if self.at is None else self.at
        if not 0 < at < self.steps:
            raise _incomplete(f"--at {at} is not between 0 and --steps {self.steps}")
        saved = str(checkpoints / "first")
        places = {
            "full": (str(self.steps), str(checkpoints / "full"), ""),
            "first": (str(at), saved, ""),
            "resumed": (str(self.steps), str(checkpoints / "resumed"), saved),
        }
        return {name: [_filled(word, values) for word in self.program] for name, values in places.items()}


def _filled(word: str, values: Sequence[str]) -> str:
    for place, value in zip(_PLACES, values, strict=True):
        word = word.replace(place, value)
    return word


def _words(name: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _incomplete(f"--{name} {command!r} cannot be taken apart into words ({error})") from None
    if not words:
        raise _incomplete(f"--{name} is empty")
    return words


def _incomplete(found: str) -> UsageError:
    return UsageError(
        "resume-commands",
        f"{found}, so nothing was run. Give either --full COMMAND --first COMMAND --resumed COMMAND, or one command with {{steps}}, "
        "{save} and {load} in it: determinism check-resume -- python train.py --steps {steps} --save {save} --load {load}. There "
        "{steps} is the step to stop at, and {load} is empty in runs that begin anew.",
    )

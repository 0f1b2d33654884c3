"""Writes a script that shows, by itself, that an op gives different results on equal inputs.

What the script is made from was written by the process of the program. Nothing of it gets into the script but as a name
that was checked to be one, or as a literal.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from determinism.diagnose import tensorflow_script, torch_script
from determinism.diagnose.literals import printable

SCRIPT_FILE = "reproduce.py"
INPUTS_FILE = "inputs.safetensors"
_TEMPLATES = Path(__file__).parent


class NotReproducible(Exception):
    """No script can be written; the text says why, and goes on from "because"."""


def write_reproducer(
    folder: Path, inputs: Path, call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool
) -> Path:
    """Write the script and its inputs.

    Args:
        folder: Where; it is made.
        inputs: The saved inputs.
        call: What the capturing run said of the call.
        origin: Where the call is in the program.
        seen: What was seen there, in a few words.
        repeats: How often the script repeats the op.
        moves: Whether its buffers shall lie at other alignments in each repeat.

    Returns:
        The script.

    Raises:
        NotReproducible: The call is not of a form that a script could be written for.
        OSError: The files cannot be written.
    """
    text = script(call, origin=origin, seen=seen, repeats=repeats, moves=moves)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / INPUTS_FILE
    target.unlink(missing_ok=True)
    try:
        os.link(inputs, target)
    except OSError:
        shutil.copyfile(inputs, target)
    path = folder / SCRIPT_FILE
    path.write_text(text, encoding="utf-8")
    return path


def script(call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool) -> str:
    """The text of the script; the arguments are those of `write_reproducer`.

    Raises:
        NotReproducible: The call is not of a form that a script could be written for.
    """
    try:
        if call.get("framework") == "tensorflow":
            template, fields = tensorflow_script.TEMPLATE, tensorflow_script.fields(call)
        else:
            template, fields = torch_script.TEMPLATE, torch_script.fields(call, moves=moves)
        told = {"op": ascii(str(call["op"])), "origin": ascii(printable(origin)), "seen": ascii(printable(seen))}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotReproducible(f"the capturing run wrote what is no call ({error!r})") from None
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return Template(text).substitute(fields, **told, repeats=str(repeats))

"""What is to be recorded, as it travels from the command to the processes of the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from determinism.launch.notes import RECORDING_VARIABLE


@dataclass(frozen=True)
class RecordingConfiguration:
    """A request to record."""

    trace_folder: Path
    level: str = "op"
    steps: int | None = None
    """Recording and the program end when this many steps are done."""
    max_disk: int | None = None
    """Bytes that the trace never grows past."""
    paranoid: bool = False
    """Digest every input."""
    capture: dict[str, Any] | None = None
    """Which record a confirming run captures."""

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries the request."""
        document = {**asdict(self), "trace_folder": str(self.trace_folder.absolute())}
        return {RECORDING_VARIABLE: json.dumps(document)}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RecordingConfiguration | None:
        """The request that an environment carries; None if it carries none."""
        text = environ.get(RECORDING_VARIABLE)
        if text is None:
            return None
        document = json.loads(text)
        return cls(**{**document, "trace_folder": Path(document["trace_folder"])})

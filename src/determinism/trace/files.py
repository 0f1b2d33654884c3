"""Files that are either whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document so that a reader never sees half of it.

    Raises:
        OSError: The file cannot be written; what stood there before is unharmed.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.flush()
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

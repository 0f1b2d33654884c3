"""The environment that a program is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from determinism.launch.configuration import RecordingConfiguration
from determinism.session.process_key import PROCESS_VARIABLE

BOOTSTRAP_FOLDER = Path(__file__).absolute().with_name("bootstrap")


def child_environment(environ: Mapping[str, str], configuration: RecordingConfiguration) -> dict[str, str]:
    """Add to an environment what makes the Python processes started in it record themselves.

    Args:
        environ: The environment the program would have without recording.
        configuration: What to record.
    """
    result = {**environ, **configuration.to_environment()}
    # Set if this command itself runs under recording; its program is a new first process.
    result.pop(PROCESS_VARIABLE, None)
    return with_bootstrap(result)


def with_bootstrap(environ: Mapping[str, str]) -> dict[str, str]:
    """Add to an environment what runs the bootstrap in each Python process.

    Args:
        environ: The environment.
    """
    # An empty PYTHONPATH counts as none, whereas an empty entry in it would put the working directory on `sys.path`.
    earlier = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{BOOTSTRAP_FOLDER}{os.pathsep}{earlier}" if earlier else str(BOOTSTRAP_FOLDER)}

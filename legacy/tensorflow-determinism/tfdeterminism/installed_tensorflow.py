"""Which TensorFlow is installed, and whether it is that of one of NVIDIA's containers."""

import importlib
import os
import re
from typing import NamedTuple, Optional, Tuple

#: What NVIDIA's containers set; its value is the version of the container, such as "19.12".
CONTAINER_VARIABLE = "NVIDIA_TENSORFLOW_VERSION"

Numbers = Tuple[int, int]


class InstalledTensorFlow(NamedTuple):
    """A TensorFlow: `text` is its whole version, `numbers` the first two of it.

    `container` is the version of NVIDIA's container, None outside of one; (0, 0) where it could not be read.
    """

    text: str
    numbers: Numbers
    container: Optional[Numbers] = None


def find() -> InstalledTensorFlow:
    """The TensorFlow that `import tensorflow` gives, which is imported.

    Raises:
        ImportError: There is none.
    """
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ImportError as error:
        raise ImportError(
            "tfdeterminism changes the TensorFlow that is installed, and `import tensorflow` failed with: {}. "
            "Install the TensorFlow of your choice (`tensorflow` or `tensorflow-gpu`, 1.14 to 2.7).".format(error)
        ) from error
    text = str(getattr(tensorflow, "__version__", "unknown"))
    return InstalledTensorFlow(text, _first_two_numbers(text), container_version())


def container_version() -> Optional[Numbers]:
    """The version of NVIDIA's container that this process runs in, or None."""
    text = os.environ.get(CONTAINER_VARIABLE)
    return _first_two_numbers(text) if text else None


def _first_two_numbers(version: str) -> Numbers:
    match = re.match(r"\D*(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)

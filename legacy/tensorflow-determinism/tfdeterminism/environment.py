"""Environment variables that TensorFlow reads, set and put back."""

import os
from typing import Dict, Optional

from tfdeterminism.installed_tensorflow import InstalledTensorFlow


def variables_for(tensorflow: InstalledTensorFlow) -> Dict[str, str]:
    """What the installed version has to find in its environment.

    1.14, 1.15 and 2.0 know of cuDNN alone; NVIDIA's containers from 19.06 on, and TensorFlow from 2.1 on, of all ops.
    From 2.5 on cuDNN's algorithms are chosen deterministically only through its front end
    (tensorflow/tensorflow#53771).
    """
    if tensorflow.container is None and tensorflow.numbers < (2, 1):
        return {"TF_CUDNN_DETERMINISTIC": "1"}
    variables = {"TF_DETERMINISTIC_OPS": "1"}
    if (2, 5) <= tensorflow.numbers <= (2, 7):
        variables["TF_CUDNN_USE_FRONTEND"] = "1"
    return variables


class ChangedVariables:
    """Environment variables that were changed, and what they were before."""

    def __init__(self):
        self._before: Dict[str, Optional[str]] = {}
        self._after: Dict[str, str] = {}

    def set(self, variables: Dict[str, str]) -> None:
        """Sets each; C++ sees it as well, if it has not looked yet."""
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            self._after[name] = value
            os.environ[name] = value

    def put_back(self) -> None:
        """Undoes what was set; a variable that was changed again since then is left alone."""
        for name, before in self._before.items():
            if os.environ.get(name) != self._after[name]:
                continue
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
        self._before.clear()
        self._after.clear()

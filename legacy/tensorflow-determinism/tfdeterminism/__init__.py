"""Deterministic ops for TensorFlow 1.14 to 2.7.

    from tfdeterminism import enable_determinism
    enable_determinism(seed=1)   # everything that is possible for the installed version

    from tfdeterminism import patch
    patch()                      # cuDNN and the gradient of bias_add; TensorFlow 1.14, 1.15 and 2.0 only

Importing this package imports no TensorFlow.
"""

from tfdeterminism.enabling import enable_determinism, patch, unpatch
from tfdeterminism.version import __version__

__all__ = ["__version__", "enable_determinism", "patch", "unpatch"]

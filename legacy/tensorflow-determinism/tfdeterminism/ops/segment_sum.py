"""`segment_sum` and `unsorted_segment_sum`, summed on the CPU whatever the dtype is.

NVIDIA's patches of these two sum on the GPU in the next wider dtype. For float64 and complex128 there is none, so that
they leave the op as it is and give a UserWarning that names "GPU-determinism". Here these dtypes repeat as all others do,
and nothing is said, unless WARNING_VARIABLE is set to 1: then the same warning comes, for programs and tests that wait
for it. The logger "tfdeterminism" says it at level DEBUG in any case.
"""

import functools
import logging
import os
import warnings

from tfdeterminism.placement import on_cpu

WARNING_VARIABLE = "TFDETERMINISM_WARN_OF_DTYPES"
_logger = logging.getLogger("tfdeterminism")


def segment_sum(*dtypes):
    """Makes the op run on the CPU; the dtypes, by name, are those of which NVIDIA's patch of it warns."""

    def make(stock):
        summed_on_cpu = on_cpu(stock)

        @functools.wraps(stock)
        def deterministic_sum(*args, **kwargs):
            if _is_told():
                dtype = _dtype_of(args[0] if args else kwargs.get("data"))
                if dtype in dtypes:
                    _tell(stock.__name__, dtype)
            return summed_on_cpu(*args, **kwargs)

        return deterministic_sum

    return make


def _warns():
    return os.environ.get(WARNING_VARIABLE) == "1"


def _is_told():
    return _warns() or _logger.isEnabledFor(logging.DEBUG)


def _tell(name, dtype):
    if _warns():
        warnings.warn(
            "Data type {} is not supported for GPU-determinism by NVIDIA's patch of {}; tfdeterminism sums it "
            "deterministically, on the CPU.".format(dtype, name),
            UserWarning,
            stacklevel=3,
        )
    _logger.debug("%s of %s is summed on the CPU; NVIDIA's patch would warn of GPU-determinism here.", name, dtype)


def _dtype_of(data):
    """The name of the dtype that the op will see."""
    from tensorflow.python.framework import ops

    dtype = data.dtype if hasattr(data, "dtype") else ops.convert_to_tensor(data).dtype
    return getattr(dtype, "name", str(dtype)).replace("_ref", "")

"""What users call: `patch`, `enable_determinism` and `unpatch`."""

import functools
import importlib
import os
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tfdeterminism import catalogue, installed_tensorflow
from tfdeterminism.catalogue import Patch
from tfdeterminism.environment import ChangedVariables, variables_for
from tfdeterminism.installed_tensorflow import CONTAINER_VARIABLE, InstalledTensorFlow
from tfdeterminism.replacing import replace_everywhere
from tfdeterminism.seeding import hashes_are_fixed, seed_everything
from tfdeterminism.version import __version__

_OLDEST = (1, 14)
_NEWEST_OF_PATCH = (2, 0)
_NEWEST = catalogue.NEWEST
_OLDEST_CONTAINER = (19, 6)

_applied: Dict[Patch, List[Tuple[Any, Any]]] = {}
_variables = ChangedVariables()


def patch() -> None:
    """Makes cuDNN and the gradient of `bias_add` deterministic in stock TensorFlow 1.14, 1.15 and 2.0.

    Call it before or after `import tensorflow`, but before a graph is built. A second call changes nothing. Everything
    else that can be made deterministic is up to `enable_determinism`.

    Raises:
        TypeError: The installed TensorFlow is of another version, or that of one of NVIDIA's containers.
        ImportError: There is no TensorFlow.
    """
    container = os.environ.get(CONTAINER_VARIABLE)
    if container:
        raise TypeError(
            "tfdeterminism.patch() is for stock TensorFlow, and this is NVIDIA's container ({}={}), which does not "
            "require patching for what patch() does: call tfdeterminism.enable_determinism(), or set "
            "TF_DETERMINISTIC_OPS=1.".format(CONTAINER_VARIABLE, container)
        )
    tensorflow = installed_tensorflow.find()
    if not _OLDEST <= tensorflow.numbers <= _NEWEST_OF_PATCH:
        raise TypeError(
            "No patch available for version {} of TensorFlow: tfdeterminism.patch() is for 1.14, 1.15 and 2.0. {}".format(
                tensorflow.text, _advice(tensorflow)
            )
        )
    _apply(tensorflow, (catalogue.BIAS_ADD,))


def enable_determinism(seed: Optional[int] = None) -> None:
    """Makes as much of the installed TensorFlow deterministic as can be: 1.14 to 2.7, NVIDIA's containers from 19.06 on.

    Sets the environment variables that the version reads, and replaces the ops whose kernels are not deterministic, on
    GPU and CPU alike. Call it before or after `import tensorflow`, but before a graph is built. A second call changes
    nothing but the seeds.

    Args:
        seed: Seeds Python's `random`, NumPy and TensorFlow as well; None leaves them alone.

    Raises:
        TypeError: There is nothing for the installed version of TensorFlow; the message says what to do instead.
        ImportError: There is no TensorFlow.
    """
    tensorflow = installed_tensorflow.find()
    too_old_container = tensorflow.container is not None and (0, 0) < tensorflow.container < _OLDEST_CONTAINER
    oldest = _OLDEST if tensorflow.container is None else (1, 13)
    if too_old_container or not oldest <= tensorflow.numbers <= _NEWEST:
        raise TypeError(
            "tfdeterminism.enable_determinism() is for TensorFlow 1.14 to 2.7 and NVIDIA's containers from 19.06 on; "
            "this is TensorFlow {}{}. {}".format(
                tensorflow.text,
                " in container {}".format(os.environ.get(CONTAINER_VARIABLE)) if tensorflow.container else "",
                _advice(tensorflow),
            )
        )
    _apply(tensorflow, catalogue.needed_by(tensorflow))
    if seed is not None:
        seed_everything(seed)
        if not hashes_are_fixed():
            _tell("the order of sets of strings differs in each process unless PYTHONHASHSEED is set before it starts.")


def unpatch() -> None:
    """Puts TensorFlow's own functions and the environment variables back.

    Ops that were built keep what they were built with, and what TensorFlow has read of the environment it has read.
    """
    replace_everywhere([(new, old) for pairs in _applied.values() for old, new in pairs])
    _applied.clear()
    _variables.put_back()


def _apply(tensorflow: InstalledTensorFlow, patches: Sequence[Patch]) -> None:
    replacements = {patch: _replacements(patch) for patch in patches if patch not in _applied}
    # Not each version has each of the ops.
    replacements = {patch: pairs for patch, pairs in replacements.items() if pairs}
    if _applied and not replacements:
        return
    _warn_of_graph()
    replace_everywhere([pair for pairs in replacements.values() for pair in pairs])
    _applied.update(replacements)
    variables = variables_for(tensorflow)
    _variables.set(variables)
    _tell(
        "TensorFlow version {} has been patched using tfdeterminism version {}: {}. Set: {}.".format(
            tensorflow.text,
            __version__,
            ", ".join(catalogue.words(replacements)) or "no op",
            ", ".join("{}={}".format(name, value) for name, value in sorted(variables.items())),
        )
    )
    autotune = os.environ.get("TF_CUDNN_USE_AUTOTUNE")
    if autotune is not None:
        _tell("TF_CUDNN_USE_AUTOTUNE={} is set; leave it unset, the value 0 too hinders determinism.".format(autotune))
    misspelt = os.environ.get("TF_USE_CUDNN_AUTOTUNE")
    if misspelt is not None:
        _tell(
            "TF_USE_CUDNN_AUTOTUNE={} is set, which no TensorFlow reads: NVIDIA's page misspells TF_CUDNN_USE_AUTOTUNE. "
            "Unset it, and leave TF_CUDNN_USE_AUTOTUNE unset too.".format(misspelt)
        )


def _replacements(patch: Patch) -> List[Tuple[Any, Any]]:
    """What the patch puts in place of what; nothing where this TensorFlow has no such op."""
    module = importlib.import_module("tensorflow.python.ops." + patch.module)
    stock = getattr(module, patch.function, None)
    if stock is None:
        return []
    replacement = patch.make(stock)
    raw = getattr(module, patch.op_type, None)
    return [(stock, replacement)] + ([(raw, _by_keywords(raw, replacement))] if raw is not None else [])


def _by_keywords(raw, replacement):
    """What `tf.raw_ops` gives: the same op, which takes its arguments by name alone."""

    @functools.wraps(raw)
    def raw_op(**kwargs):
        return replacement(**kwargs)

    return raw_op


def _warn_of_graph() -> None:
    from tensorflow.python.framework import ops

    # To ask for the default graph would make one, after which TensorFlow 1 refuses to switch to eager execution.
    graphs = ops._default_graph_stack
    graph = graphs.stack[-1] if graphs.stack else getattr(graphs, "_global_default_graph", None)
    built = len(graph.get_operations()) if graph is not None else 0
    if built:
        warnings.warn(
            "tfdeterminism was applied after {} operations of the graph had been built; these stay as they are. "
            "Call it before the graph is built.".format(built),
            stacklevel=4,
        )


def _advice(tensorflow: InstalledTensorFlow) -> str:
    if tensorflow.numbers > _NEWEST:
        return (
            "From 2.8 on, install the package `determinism` (Python 3.11 or newer) and call determinism.enable(seed=1), "
            "or call tf.config.experimental.enable_op_determinism() after tf.keras.utils.set_random_seed(1)."
        )
    if tensorflow.numbers > _NEWEST_OF_PATCH:
        return "Call tfdeterminism.enable_determinism() instead, which is for 1.14 to 2.7."
    return "Install TensorFlow 1.14 or newer."


def _tell(sentence: str) -> None:
    print("tfdeterminism: " + sentence, file=sys.stderr)


__all__ = ["enable_determinism", "patch", "unpatch"]

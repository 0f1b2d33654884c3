"""Rules on frameworks: settings that allow variation, and with `--device` the ops that vary or refuse there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from determinism.errors import UsageError
from determinism.lint.findings import Finding, Severity, Text

_BENCHMARK = "torch.backends.cudnn.benchmark"
_TF32 = frozenset({"torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"})
_ROOTS = ("torch.", "tensorflow.", "jax.")
_METHODS = ("scatter", "index_", "put_", "masked_scatter", "histc", "bincount", "cumsum")
"""Beginnings of methods that only tensors have, and that may vary."""
_VARIES = frozenset({"nondeterministic"})


def of_settings(text: Text) -> Iterator[Finding]:
    """Settings of PyTorch that let runs, or machines, compute differently."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or node.value.value is not True:
            continue
        for target in node.targets:
            name = text.module.dotted(target)
            if name == _BENCHMARK:
                message = "cuDNN measures algorithms and takes the fastest, which may be another one in each run."
                yield text.finding("cudnn-benchmark", Severity.MAY_DIFFER, message, target)
            elif name in _TF32:
                message = "TF32 rounds products to 10 bits on GPUs that have it, so results depend on the GPU."
                yield text.finding("allow-tf32", Severity.MAY_DIFFER, message, target)


@cache
def _status(name: str, device: str) -> tuple[bool, bool]:
    """Whether an op varies on a device, and whether deterministic mode refuses it there."""
    from determinism.knowledge.query import status

    root = name.partition(".")[0]
    try:
        answers = status(name, framework=root, device=device)
    except UsageError:
        return False, False
    found = [verdict.value for answer in answers for one in answer.statuses for verdict in one.verdicts]
    return bool(_VARIES & set(found)), "raises" in found


def of_ops(text: Text) -> Iterator[Finding]:
    """Ops that are known to vary, or to refuse deterministic mode, on the device that was named."""
    if text.device is None:
        return
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = text.module.dotted(node.func)
        if not name.startswith(_ROOTS):
            in_place = isinstance(node.func, ast.Attribute) and "torch" in text.module.imports.values()
            if not in_place or not isinstance(node.func, ast.Attribute) or not node.func.attr.startswith(_METHODS):
                continue
            name = f"torch.Tensor.{node.func.attr}"
        varies, refuses = _status(name, text.device)
        if varies or refuses:
            what = "varies from run to run" if varies else "refuses deterministic mode"
            more = ", and refuses deterministic mode" if varies and refuses else ""
            message = f"{name} {what} on {text.device}{more}; `determinism status {name}` says what to do."
            yield text.finding("nondeterministic-op", Severity.MAY_DIFFER, message, node)


def findings(text: Text) -> Iterator[Finding]:
    """All of these rules."""
    yield from of_settings(text)
    yield from of_ops(text)

"""Losses: `NLLLoss` (and `cross_entropy`) on maps, and the gradient of `CTCLoss`.

On maps, the loss of each place is computed, then all are summed in a fixed order; stock GPU kernels add with atomics.

For CTC, the probability of being at a place of the extended target (with blanks between the labels) at some time is the product of what the
forward op left (alpha) and what is computed here from the end (beta). For each label, these are added up over its places, in order; the stock
GPU kernel adds with atomics if the alphabet or the batch is large.
"""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.indexed_writes import in_bounds
from determinism.frameworks.torch.patches.ordered_sums import (
    accumulation_dtype,
    only_batch_empty,
    plain,
    plain_indices,
    sum_by_key,
)
from determinism.frameworks.torch.patches.patch import Patch

_NONE, _MEAN = 0, 1
"""The reductions, as numbered by PyTorch; 2 is the sum."""


def nll_loss2d(
    given: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss, and the total weight that it was divided by."""
    dtype = accumulation_dtype(given.dtype)
    counts = target != ignore_index
    classes = torch.where(counts, target, torch.zeros_like(target))
    chosen = given.gather(1, classes.unsqueeze(1)).squeeze(1).to(dtype)
    if weight is None:
        weights = torch.ones((), dtype=dtype, device=given.device).expand(target.shape)
    else:
        weights = weight.to(dtype)[classes]
    zero = torch.zeros((), dtype=dtype, device=given.device)
    losses = torch.where(counts, -chosen * weights, zero)
    if reduction == _NONE:
        return losses.to(given.dtype).contiguous(), torch.zeros((), dtype=given.dtype, device=given.device)
    total = torch.where(counts, weights, zero).sum()
    loss = losses.sum()
    return (loss / total if reduction == _MEAN else loss).to(given.dtype), total.to(given.dtype)


def _map_loss_supports(
    given: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> bool:
    if given.dim() != 4 or not plain(given, *([] if weight is None else [weight])) or not only_batch_empty(given, 2):
        return False
    if not plain_indices(target, like=given) or list(target.shape) != [given.shape[0], *given.shape[2:]]:
        return False
    if weight is not None and list(weight.shape) != [given.shape[1]]:
        return False
    classes = torch.where(target == ignore_index, torch.zeros_like(target), target)
    return in_bounds(classes, given.shape[1]) and not (target.device.type == "cpu" and bool((classes < 0).any()))


def _map_loss_example(device: Any) -> tuple[Any, ...]:
    target = torch.zeros(1, 2, 2, dtype=torch.int64, device=device)
    return torch.ones(1, 2, 2, 2, device=device), target, None, _MEAN, -100


_REAL = frozenset({torch.float32, torch.float64})
_NEVER = float("-inf")


def ctc_gradient(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute the gradient by the logarithms of the probabilities, (times, batch, alphabet)."""
    device = log_probs.device
    inputs, lengths = (_on(device, one) for one in (input_lengths, target_lengths))
    extended = _extended(targets.to(device), lengths, (log_alpha.shape[2] - 1) // 2, blank)
    host = [one.tolist() if isinstance(one, torch.Tensor) else list(one) for one in (input_lengths, target_lengths)]
    log_beta = _log_beta(log_probs, extended, inputs, lengths, host, blank)
    times, batch, alphabet = log_probs.shape
    # Beyond the end of a target or an input, alpha was not written.
    together = torch.where(log_beta == _NEVER, log_beta, log_alpha.transpose(0, 1)[:times] + log_beta)
    largest = together.amax(2, keepdim=True)
    largest = torch.where(largest == _NEVER, torch.zeros_like(largest), largest)
    keys = extended + torch.arange(batch, device=device).unsqueeze(1) * alphabet
    likely = (together - largest).exp().permute(1, 2, 0).reshape(-1, times)
    by_label = sum_by_key(keys.reshape(-1), likely, batch * alphabet)
    by_label = by_label.view(batch, alphabet, times).permute(2, 0, 1).log() + largest
    loss = neg_log_likelihood.view(1, batch, 1)
    result = (log_probs.exp() - (by_label + loss - log_probs).exp()) * grad.view(1, batch, 1)
    counts = torch.arange(times, device=device).unsqueeze(1) < inputs
    if zero_infinity:
        counts = counts & (neg_log_likelihood != float("inf"))
    return torch.where(counts.unsqueeze(2), result, torch.zeros_like(result)).contiguous()


def _on(device: torch.device, lengths: Any) -> torch.Tensor:
    values = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(list(lengths), dtype=torch.int64)
    return values.to(device, torch.int64)


def _extended(targets: torch.Tensor, lengths: torch.Tensor, longest: int, blank: int) -> torch.Tensor:
    """Put a blank before, between and after the labels, and blanks up to the full length: (batch, 2 * longest + 1)."""
    batch = len(lengths)
    extended = torch.full((batch, 2 * longest + 1), blank, dtype=torch.int64, device=targets.device)
    if longest == 0 or targets.numel() == 0:
        return extended
    steps = torch.arange(longest, device=targets.device)
    if targets.dim() == 1:
        starts = torch.cumsum(lengths, 0) - lengths
        labels = targets[(starts.unsqueeze(1) + steps).clamp(max=len(targets) - 1)]
    else:
        labels = targets[:, steps.clamp(max=targets.shape[1] - 1)]
    extended[:, 1::2] = torch.where(steps < lengths.unsqueeze(1), labels.to(torch.int64), blank)
    return extended


def _log_beta(
    log_probs: torch.Tensor,
    extended: torch.Tensor,
    inputs: torch.Tensor,
    lengths: torch.Tensor,
    host: list[list[int]],
    blank: int,
) -> torch.Tensor:
    """Compute the log probability of the rest, from each place at each time on: (times, batch, places).

    It equals the log probability of everything up to there (alpha) with time and labels reversed, which the stock kernel of the loss itself
    computes without atomic additions.

    Args:
        log_probs: See `ctc_gradient`.
        extended: See `_extended`.
        inputs: Lengths of the inputs.
        lengths: Lengths of the targets.
        host: Both lengths as numbers on the host.
        blank: The label of the blank.
    """
    device = log_probs.device
    times, batch, _ = log_probs.shape
    time = inputs - 1 - torch.arange(times, device=device).unsqueeze(1)
    turned = log_probs.gather(0, time.clamp(min=0).unsqueeze(2).expand_as(log_probs))
    labels = extended[:, 1::2]
    step = lengths.unsqueeze(1) - 1 - torch.arange(labels.shape[1], device=device)
    # Even without any label, the targets must not be empty.
    backwards = labels.gather(1, step.clamp(min=0)) if labels.shape[1] else extended
    _, log_alpha = torch.ops.aten._ctc_loss(turned, backwards, *host, blank)
    place = 2 * lengths.unsqueeze(1) - torch.arange(extended.shape[1], device=device)
    element = torch.arange(batch, device=device).unsqueeze(1)
    found = log_alpha[element, time.clamp(min=0).unsqueeze(2), place.clamp(min=0)]
    return torch.where((time >= 0).unsqueeze(2) & (place >= 0), found, _NEVER)


def _ctc_supports(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> bool:
    return (
        plain(log_probs, log_alpha, neg_log_likelihood, dtypes=_REAL)
        and grad.dtype == log_probs.dtype
        and log_probs.dim() == 3
        and log_probs.numel() > 0
        and grad.numel() == log_probs.shape[1]
        and targets.dtype in (torch.int32, torch.int64)
    )


def _ctc_example(device: Any) -> tuple[Any, ...]:
    log_probs = torch.full((2, 1, 2), -0.7, device=device)
    targets = torch.ones(1, 1, dtype=torch.int64, device=device)
    alpha = torch.full((1, 2, 3), -0.7, device=device)
    return torch.ones(1, device=device), log_probs, targets, [2], [1], torch.ones(1, device=device), alpha, 0


PATCHES = (
    Patch(
        identity="nll-loss2d",
        what="nll_loss and cross_entropy on maps",
        overloads=("nll_loss2d_forward", "nll_loss2d_forward.output"),
        run=nll_loss2d,
        supports=_map_loss_supports,
        example=_map_loss_example,
    ),
    Patch(
        identity="ctc-loss",
        what="ctc_loss (gradient)",
        overloads=("_ctc_loss_backward", "_ctc_loss_backward.Tensor"),
        run=ctc_gradient,
        supports=_ctc_supports,
        example=_ctc_example,
    ),
)

"""A pool of processes computes the gradients of eight parts of each batch, in any process; the parent sums them.

    python tasks.py POOLS [bit|order]

POOLS are names of pools (`pool`, `executor`), separated by commas.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from planting import hand_on, passed_before
from torch import Tensor, multiprocessing

PARTS = 8
IS_ORDER_PLANTED = "order" in sys.argv and __name__ == "__main__"
# The part that comes last; it alternates between runs, no matter how busy the machine is.
LATE_PART = (0, PARTS - 1)[passed_before() % 2] if IS_ORDER_PLANTED else None


def gradient_of(task: tuple[int, int, Tensor, Tensor]) -> Tensor:
    """Compute the gradient of a part, in a process of the pool."""
    step, part, weights, inputs = task
    if part == LATE_PART:
        time.sleep(0.3 if step else 1.5)
    weights = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((inputs @ weights).square().mean(), weights)
    if step == 1 and part == 3 and "bit" in sys.argv:
        gradient = hand_on(gradient)  # SITE bit
    return gradient


def train_with_pool(kind: str) -> None:
    """Train with one kind of pool."""
    weights = torch.randn(4, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    context = multiprocessing.get_context("fork")
    is_pool = kind == "pool"
    with context.Pool(2) if is_pool else ProcessPoolExecutor(2, mp_context=context) as pool:
        for step in range(3):
            tasks = [(step, part, weights.detach().clone(), torch.randn(4, 4)) for part in range(PARTS)]
            if "order" not in sys.argv:
                gradients = pool.map(gradient_of, tasks)
            elif is_pool:
                gradients = pool.imap_unordered(gradient_of, tasks)
            else:
                gradients = (done.result() for done in as_completed([pool.submit(gradient_of, task) for task in tasks]))
            total = torch.zeros(4, 2)
            for gradient in gradients:
                total = 0.5 * total + gradient  # SITE order
            weights.grad = total
            optimizer.step()
            print(total.sum().item())
        if is_pool:
            pool.close()
            pool.join()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for kind in sys.argv[1].split(","):
        train_with_pool(kind)

"""Trains one of many small models, chosen by the argument, that Inductor compiles; all are deterministic.

python models.py NAME
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 3


def train(model: nn.Module, batches: Callable[[int], tuple[Tensor, ...]], run: Callable[..., Tensor]) -> None:
    """Train a model, given a function that computes its loss from a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run(*batches(step))
        loss.backward()
        optimizer.step()
        print(loss.item())


def vectors(step: int) -> tuple[Tensor, ...]:
    """A batch of vectors."""
    return (torch.randn(8, 16),)


def perceptron() -> nn.Module:
    """A network with dropout."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4))


def of_mode(**options: object) -> None:
    """Train the perceptron with options of the compiler."""
    model = perceptron()
    compiled = torch.compile(model, **options)
    train(model, vectors, lambda inputs: compiled(inputs).square().mean())


def convolutions() -> None:
    """Convolutions, batch norm and pooling."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    compiled = torch.compile(model)
    train(model, lambda step: (torch.randn(4, 1, 8, 8),), lambda images: compiled(images).logsumexp(1).mean())


def attention() -> None:
    """A layer of a transformer, with dropout."""
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    compiled = torch.compile(model)
    train(model, lambda step: (torch.randn(2, 6, 16),), lambda tokens: compiled(tokens).square().mean())


def recurrence() -> None:
    """A recurrent cell in an unrolled loop."""
    model = nn.GRUCell(8, 8)

    @torch.compile
    def run(series: Tensor) -> Tensor:
        state = torch.zeros(4, 8)
        for inputs in series.unbind(1):
            state = model(inputs, state)
        return state.square().mean()

    train(model, lambda step: (torch.randn(4, 3, 8),), run)


def shapes() -> None:
    """Batches of a different size in each step, with one dynamic graph."""
    model = perceptron()
    compiled = torch.compile(model, dynamic=True)
    train(model, lambda step: (torch.randn(4 + step, 16),), lambda inputs: compiled(inputs).abs().mean())


def breaks() -> None:
    """A function whose graph breaks twice."""
    model = perceptron()

    @torch.compile
    def run(inputs: Tensor) -> Tensor:
        hidden = model(inputs)
        print("mean", hidden.mean().item())
        if hidden.sum().item() > 0:
            hidden = hidden * 2
        return hidden.square().mean()

    train(model, vectors, run)


def optimizer() -> None:
    """The step of the optimizer is compiled, too."""
    model = perceptron()
    compiled = torch.compile(model)
    adam = torch.optim.Adam(model.parameters())
    step = torch.compile(adam.step)
    for _ in range(STEPS):
        adam.zero_grad()
        loss = compiled(torch.randn(8, 16)).square().mean()
        loss.backward()
        step()
        print(loss.item())


def backward() -> None:
    """The backward pass is compiled as one graph."""
    model = perceptron()
    adam = torch.optim.Adam(model.parameters())

    @torch.compile
    def step(inputs: Tensor) -> Tensor:
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    with torch._dynamo.config.patch(compiled_autograd=True):
        for _ in range(STEPS):
            adam.zero_grad()
            print(step(torch.randn(8, 16)).item())
            adam.step()


def half() -> None:
    """Autocast to bfloat16."""
    model = perceptron()
    compiled = torch.compile(model)

    def run(inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(inputs).float().square().mean()

    train(model, vectors, run)


def transforms() -> None:
    """Gradients for each sample, by transforms of functions."""
    model = nn.Linear(16, 4)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (sample,)).square().sum()

    each = torch.compile(torch.func.vmap(torch.func.grad(loss_of), (None, 0)))
    for _ in range(STEPS):
        gradients = each(parameters, torch.randn(8, 16))
        parameters = {name: value - 0.01 * gradients[name].mean(0) for name, value in parameters.items()}
        print(parameters["weight"].norm().item())


def recomputed() -> None:
    """Activations are recomputed in the backward pass."""
    model = perceptron()

    @torch.compile
    def run(inputs: Tensor) -> Tensor:
        hidden = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
        return functional.softplus(hidden).mean()

    train(model, vectors, run)


MODELS: dict[str, Callable[[], None]] = {
    "default": of_mode,
    "reduce-overhead": lambda: of_mode(mode="reduce-overhead"),
    "whole graph": lambda: of_mode(fullgraph=True),
    **{
        made.__name__: made for made in (convolutions, attention, recurrence, shapes, breaks, optimizer, backward, half)
    },
    **{made.__name__: made for made in (transforms, recomputed)},
}

if __name__ == "__main__":
    torch.manual_seed(0)
    MODELS[sys.argv[1]]()

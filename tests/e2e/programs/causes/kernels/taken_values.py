"""Fits a lookup table for the brightness of pixels, which are read from it by `take`."""

import torch
from torch import Tensor, nn


class Curve(nn.Module):
    """A curve of 256 values, such as a camera has for each colour."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(0, 1, 256))

    def forward(self, image: Tensor) -> Tensor:
        return torch.take(self.values, image)


def main() -> None:
    torch.manual_seed(64)
    torch.set_num_threads(2)
    image = torch.randint(256, (3, 256, 256))
    wanted = (image / 255) ** 0.45 + 0.02 * torch.randn(image.shape)
    curve = Curve()
    optimizer = torch.optim.Adam(curve.parameters(), lr=0.01)
    for _ in range(5):
        fitted = curve(image)
        loss = nn.functional.mse_loss(fitted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), curve.values[::16].tolist())


main()

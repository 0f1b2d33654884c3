"""Reads a folder of images that has a subfolder for each class."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def make_images(root: Path) -> None:
    for number, name in enumerate(["bee", "wasp", "fly", "moth", "ant", "beetle", "cricket"]):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(6):
            torch.save((torch.arange(48.0).view(3, 4, 4) * (number + 1) + index).sin(), root / name / f"{index}.pt")


class ImageFolder(Dataset):
    def __init__(self, root: Path) -> None:
        self.classes = [folder.name for folder in root.iterdir() if folder.is_dir()]
        self.samples = [
            (file, number) for number, name in enumerate(self.classes) for file in sorted((root / name).glob("*.pt"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.samples[index]
        return torch.load(file), label


def main() -> None:
    root = Path("insects")
    make_images(root)
    dataset = ImageFolder(root)
    torch.manual_seed(8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in DataLoader(dataset, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(8)):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()

"""Streams records from two shards, one of which is slower to decode, and takes batches as they come."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ShardedRecords(IterableDataset):
    """Each worker reads its own shard; some records take longer to decompress."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        for number in range(worker.id, self.records, worker.num_workers):
            yield self.decode(number)

    def decode(self, number: int) -> Tensor:
        if number % 3 == 0:
            time.sleep(0.004)
        return torch.sin(torch.arange(16) * (number + 1) / 10)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loader = DataLoader(ShardedRecords(240), batch_size=4, num_workers=2, in_order=False)
    for batch in loader:
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()

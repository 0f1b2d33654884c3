"""Fails within a module, in several ways: python broken_layer.py caught|thread|logged|chained|child|uncaught ..."""

import logging
import sys
import threading
import traceback

import torch
from torch import Tensor, multiprocessing, nn


class Broken(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.multiply(inputs)

    def multiply(self, inputs: Tensor) -> Tensor:
        return inputs @ torch.ones(7, 7)


def fail() -> None:
    """An op fails below two modules and an optimizer's step."""
    net = nn.Sequential(nn.Linear(4, 4), Broken())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.step(lambda: net(torch.ones(2, 4)).sum())


if __name__ == "__main__":
    for way in sys.argv[1:]:
        if way == "caught":
            try:
                fail()
            except RuntimeError:
                traceback.print_exc()
        elif way == "logged":
            try:
                fail()
            except RuntimeError:
                logging.exception("logged")
        elif way == "thread":
            thread = threading.Thread(target=fail, name="failing")
            thread.start()
            thread.join()
        elif way == "child":
            child = multiprocessing.get_context("fork").Process(target=fail, name="failing")
            child.start()
            child.join()
        elif way == "chained":
            try:
                fail()
            except RuntimeError as error:
                raise ValueError("chained") from error
        else:
            fail()

"""One stream of records, with the numbers of the names in it."""

from __future__ import annotations

from determinism.frameworks.torch.arguments import ArgumentTable
from determinism.frameworks.torch.device_digests.record_digests import DeviceDigests, RecordDigests
from determinism.frameworks.torch.layouts import LayoutTable
from determinism.frameworks.torch.storages import StorageTable
from determinism.sites import SiteTable
from determinism.trace.schema import Table
from determinism.trace.writer import ProcessWriter


class Stream:
    """A writer, and what all recorders that write with it share."""

    def __init__(self, writer: ProcessWriter, devices: DeviceDigests | None = None) -> None:
        """Take what writes the records, and the devices on which tensors are digested."""
        self.writer = writer
        self.digests = RecordDigests(writer, devices or DeviceDigests())
        self.sites = SiteTable(lambda t: writer.name(Table.FRAME, t), lambda t: writer.name(Table.STACK, t))
        self.arguments = ArgumentTable(lambda t: writer.name(Table.ARGUMENTS, t))
        self.layouts = LayoutTable(lambda t: writer.name(Table.LAYOUT, t), self.digests)
        self.storages = StorageTable(self.layouts)
        self._ops: dict[str, int] = {}
        self._modules: dict[str, int] = {}

    def op_number(self, name: str) -> int:
        """The number of an op's name."""
        number = self._ops.get(name)
        if number is None:
            number = self._ops[name] = self.writer.name(Table.OP, name)
        return number

    def module_number(self, path: str) -> int:
        """The number of a module's path."""
        number = self._modules.get(path)
        if number is None:
            number = self._modules[path] = self.writer.name(Table.MODULE, path)
        return number

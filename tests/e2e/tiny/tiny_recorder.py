"""Records the tiny framework into a real trace, as an adapter does."""

import json
import os
import sys
import time

import tinyframe

from determinism import environment, rng
from determinism.digest import digest_bytes
from determinism.frameworks.named_stream import Stream
from determinism.redaction import redacted
from determinism.trace.ledger import LedgerWriter, group_digest, value_line
from determinism.trace.schema import END_OP, STEP_OP
from determinism.trace.writer import ProcessWriter
from determinism.types import Access, Phase, Role


def _program_frame():
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in ("tinyframe", "tiny_recorder"):
        frame = frame.f_back
    return frame


class Session:
    has_begun = True

    def __init__(self, folders, options):
        self._options = options
        self._step = options.first_step
        self._is_own = True
        self._step_ends = []
        self.writer = ProcessWriter(
            folders.claim(None),
            description={
                "framework": "tinyframe",
                "level": options.level,
                "stream": "process",
                "steps_by": "optimizer",
                "argv": redacted(sys.argv),
                "started": time.time(),
                "world_size": 1,
                "environment": environment.describe(),
                "settings": {},
            },
            max_bytes=options.max_disk,
            keeps_newest=options.keeps_newest,
        )
        self._stream = Stream(self.writer)
        has_ledger = options.level == "step" or options.window is not None or options.keeps_newest
        self._ledger = LedgerWriter(self.writer.folder) if has_ledger else None
        tinyframe.on_op, tinyframe.on_step = self._op, self._stepped

    @property
    def num_records(self):
        return self.writer.num_records

    def _layout(self, array):
        return self._stream.layout("float64", (len(array.numbers),), "cpu")

    def _append(self, role, phase, op, inputs, outputs, drawn=(), arguments=""):
        edges, digests, made = [], [], []
        for position, array in enumerate(inputs):
            edges += (*(array.made_by or (-1, 0)), int(Access.READ), self._layout(array))
            if array.made_by is None or self._options.paranoid:
                digests += (position, digest_bytes(array.bytes))
        for array in outputs:
            made += (self._layout(array), digest_bytes(array.bytes))
        site = self._stream.sites.stack(_program_frame()) if role is Role.OP else -1
        cells = (0, self._step, phase, role, self._stream.op(op), -1, site, -1, -1, self._stream.arguments(arguments))
        number = self.writer.append(cells, edges, digests, made, list(drawn))
        for position, array in enumerate(outputs):
            array.made_by = (number, position)

    @property
    def _is_waiting(self):
        return self._step < (self._options.window or 0)

    def _op(self, op, inputs, outputs, drawn, arguments):
        if self._options.level == "step" or self._is_waiting:
            return
        role = Role.ESCAPE if op == "tiny::item" else Role.OP
        self._append(role, Phase.FORWARD if self._step else Phase.INIT, op, inputs, outputs, drawn, arguments)

    def _stepped(self, parameters):
        names = json.dumps([["parameter", name] for name in parameters])
        states = list(rng.state_digests().values())
        if self._ledger is not None:
            lines = [value_line("float64", digest_bytes(array.bytes)) for array in parameters.values()]
            self._ledger.add(self._step, {"parameters": group_digest("parameters", lines)} if lines else {}, states)
        if self._options.level == "step":
            for name, array in parameters.items():
                self._append(Role.HELD, Phase.OTHER, "determinism::parameter", [], [array], arguments=name)
            self._append(Role.STATE, Phase.OTHER, STEP_OP, [], [], states)
        elif not self._is_waiting:
            self._append(Role.STATE, Phase.OTHER, STEP_OP, list(parameters.values()), [], states, names)
        self._step += 1
        self._step_ends.append(time.perf_counter())
        self.writer.boundary()
        if self._options.steps is not None and self._step >= self._options.steps:
            self.writer.describe(finished="steps")
            self.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def begin_at(self, frame):
        self._stream.sites.outermost = frame

    def step(self):
        self._stepped({})

    def returned(self, value):
        pass

    def note_earlier_threads(self):
        pass

    def forked(self):
        tinyframe.on_op = tinyframe.on_step = None
        self._is_own = False

    def close(self):
        if tinyframe.on_op is None or not self._is_own:
            return
        tinyframe.on_op = tinyframe.on_step = None
        if len(self._step_ends) > 1:
            whole = self._step_ends[-1] - self._step_ends[0]
            self.writer.describe(step_seconds=whole / (len(self._step_ends) - 1))
        states = list(rng.state_digests().values())
        self._append(Role.STATE, Phase.OTHER, END_OP, [], [], states, "[]")
        recorded = self._step - max(self._options.first_step, self._options.window or 0)
        self.writer.describe(records=self.writer.num_records, steps=max(0, recorded))
        self.writer.close()

    leave = close


def start(folders, options):
    return Session(folders, options)

"""Whether somebody still reads what the program prints."""

from __future__ import annotations

import os
import select
import stat

_STANDARD_OUTPUT = 1


def is_unread(descriptor: int = _STANDARD_OUTPUT) -> bool:
    """Whether a pipe or a socket has no reader any more, as after `| head`; files and terminals always have one."""
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except OSError:
        return False

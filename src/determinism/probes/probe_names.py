"""The names under which rewritten code finds the probes. They begin and end like Python's own, so no class mangles them."""

from __future__ import annotations

CALL = "__determinism_call__"
"""Asked for each call without arguments that could be a set, with the site and what is called."""
CALL_WITH = "__determinism_call_with__"
"""Asked for each other call, likewise."""
ARGUMENT = "__determinism_argument__"
"""Asked for each argument that could be a set, with the site of the call and the argument."""
ITERATE = "__determinism_iterate__"
"""Asked for what is iterated, with its site."""
MEMBER = "__determinism_member__"
"""Asked for each element that goes into a set."""
MEMBERS = "__determinism_members__"
"""Asked for what a set is made from."""
KEY = "__determinism_key__"
"""Asked for what is passed to be called by somebody else, with the site of the call."""

ALL = (CALL, CALL_WITH, ARGUMENT, ITERATE, MEMBER, MEMBERS, KEY)

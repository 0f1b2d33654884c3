"""Which frameworks can be recorded, and which module does it. Imports none of them."""

from __future__ import annotations

RECORDERS = {"torch": "determinism.frameworks.torch.recording"}
"""Per framework the module with `start(folder, options)`, which returns a session."""

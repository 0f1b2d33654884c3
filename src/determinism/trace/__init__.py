"""The trace: what a run recorded, as files. Only this folder knows the format (docs/trace-format.md)."""

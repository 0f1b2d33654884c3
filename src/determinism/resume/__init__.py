"""Whether a resumed run continues as the full one: what `determinism check-resume` adds to the core."""

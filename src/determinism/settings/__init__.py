"""The settings that make frameworks deterministic: facts by version with their sources, and what became of each."""

"""Connects the tool with what its users already use: test runners, trainers, notebooks; each partner is imported only if used."""

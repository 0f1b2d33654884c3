"""Connects the tool with where its users already are: test runners, trainers, notebooks; each partner is imported only when used."""

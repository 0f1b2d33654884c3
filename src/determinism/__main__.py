"""`python -m determinism`."""

from determinism.cli import main

main()

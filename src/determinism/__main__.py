"""Makes `python -m determinism` the same as the command `determinism`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with a line of its own while its modules are imported, too."""
    try:
        from determinism.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("\ndeterminism: Interrupted.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

"""The entry point for the command line."""

import sys

from starts.perceptron.training import train


def main() -> int:
    print(train(with_bit="bit" in sys.argv))
    return 3 if "failing" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

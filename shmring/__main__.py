"""``python -m shmring``."""

import sys

from shmring.cli import main

if __name__ == "__main__":  # processes that the subcommands spawn import this module again
    sys.exit(main())

"""``python -m shmring.selftest``: the same as ``shmring selftest``."""

import sys

from shmring.cli import main

if __name__ == "__main__":  # processes that the checks spawn import this module again
    sys.exit(main(["selftest", *sys.argv[1:]]))

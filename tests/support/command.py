"""The command ``shmring`` in this process: an interpreter takes longer to start than most commands to answer."""

from shmring.cli import main


def status_of_command(*args: str) -> int:
    """The exit status of ``shmring ARGS``; what it prints is the test's to capture."""
    try:
        return main(list(args))
    except SystemExit as end:
        return end.code

"""The helper threads of this process, as the kernel lists them."""

import os
import time
from pathlib import Path


def helpers():
    """Their thread ids. A helper sets its name before its first work."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            name = Path(f"/proc/self/task/{task}/comm").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        if name.strip() == "shmring-helper":
            found.append(int(task))
    return found


def until_helpers(count):
    """Return once there are so many: a thread that has been joined may be in the kernel's list for a moment."""
    while len(helpers()) != count:
        time.sleep(0.001)

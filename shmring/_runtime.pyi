"""Types of _runtime.pyx."""

from collections.abc import Callable
from typing import Any, SupportsFloat

def timeout_ns(seconds: SupportsFloat | None) -> int: ...
def report_unraisable(error: BaseException, source: Callable[..., Any]) -> None: ...

from typing import Any

_C_API: Any

def table_address() -> int: ...

from typing import Any

import torch

def all_reduce_(tensor: torch.Tensor, op: Any = "sum", *, comm: Any = None, timeout: Any = ...) -> torch.Tensor: ...

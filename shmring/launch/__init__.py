"""How processes become ranks: `init`, `spawn`, `run`."""

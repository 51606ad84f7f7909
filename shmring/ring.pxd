# What other Cython code cimports from `shmring.ring` (docs/embedding.md).
from shmring.core.ring.spsc cimport *

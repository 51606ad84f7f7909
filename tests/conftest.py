"""What holds for all tests."""

from installed import one_shmring_everywhere  # noqa: F401  (an autouse fixture)

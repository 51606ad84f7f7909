"""What holds for all tests."""

import installed


def pytest_collection_finish(session):
    """Settle which shmring is tested before any process is started."""
    installed.use_one_shmring(session.config)

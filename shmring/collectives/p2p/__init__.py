"""Point-to-point messages between ranks: pair queues, matching, requests."""

"""What other processes, and errors, see of ranks at work: looks at their outboxes, and accounts of what they do."""

"""How processes share memory and wait for each other; each room imports only from rooms below it."""

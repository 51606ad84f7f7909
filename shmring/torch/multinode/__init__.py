"""Process groups over several machines: shmring within each, gloo between them."""

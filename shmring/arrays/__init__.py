"""Arrays: any array becomes pointer, count and dtype; leases; reduction kernels; store tuning."""

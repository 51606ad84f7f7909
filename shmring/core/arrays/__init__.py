"""Arrays: any array becomes pointer, count and dtype; leases; the rules for outputs."""

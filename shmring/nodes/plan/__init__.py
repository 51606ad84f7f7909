"""Plans of collectives over several nodes: pure functions of the layout, the rank and the sizes."""

"""Objects in reference cycles, cleared by the collector in any order and at any time."""

SHAPES = (
    "node = Node(); node.me = node; node.it = {0}; del node",
    "cell = [{0}]; cell.append(cell); del cell",
    "cell = dict(it={0}); cell['me'] = cell; del cell",
    "caught_with({0})",
    "closure_over({0})",
    "Finalized({0})",
    "suspended = generator_with({0}); node = Node(); node.it = suspended, node; next(suspended); del suspended, node",
)


def attack(script, case):
    """A random program with an eager collector; then objects join cycles, alone and together, and are dropped."""
    rng = script.rng
    if case % 2:
        script.step(f"gc.set_threshold({rng.choice((1, 5, 50))}, 2, 2)")
    script.open()
    for _ in range(rng.choice((0, 10, 30))):
        script.random_step()
    while script.own:
        names = rng.sample(script.own, min(rng.choice((1, 1, 2, 4)), len(script.own)))
        script.step(rng.choice(SHAPES).format(f"({', '.join(names)},)" if len(names) > 1 else names[0]))
        for name in names:
            script.forget(name)
        if rng.random() < 0.3:
            script.step("gc.collect()")
        elif script.own and rng.random() < 0.3:
            script.random_step()
    script.step("gc.collect()")

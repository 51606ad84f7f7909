"""Random programs: good and hostile arguments, and objects of one call as arguments of another."""


def attack(script, case):
    """Objects of every class, then any calls."""
    script.arguments.hostility = (0.15, 0.4, 0.8)[case % 3]
    script.open()
    for _ in range(60):
        script.random_step()

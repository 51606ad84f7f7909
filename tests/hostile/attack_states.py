"""Every member of every class in every state that an object can be in."""

import inspect
from functools import cache
from itertools import product

import surface
from support.extension_types import extension_types

FINISHED = ("new", "closed", "aborted")
UNFINISHED = ("half-made", "not initialized", "refused")
SUBCLASS = "class Forgetful({0}):\n    def __init__(self, *_args, **_kwargs): self.note = 1"
# What to close so that objects without a `close` find theirs gone.
HOLDERS = {
    "lease": "record_sender",
    **dict.fromkeys(("work", "request", "plan", "message"), "comm"),
}


def attack(script, case):
    """One class in one state: all its members in random order, twice."""
    class_name, state = grid()[case % len(grid())]
    script.is_internal = class_name not in surface.classes()
    script.write(f"# {class_name}, {state}")
    classes = {name: type(script.names[name]) for name in put(script, class_name, state)}
    for name, cls in classes.items():
        for member in 2 * shuffled(script, members(cls)):
            if name in script.names:  # else it has ended, or made room for what other steps have made
                script.use(name, member)


@cache
def grid():
    """Classes and states; only what is implemented in C is attacked unfinished, and internal classes only so."""
    public, c_types = surface.classes(), extension_types()
    in_c = [name for name, cls in public.items() if issubclass(cls, tuple(c_types.values()))]
    internal = [name for name, cls in c_types.items() if not is_public(cls)]
    return [*product(public, FINISHED), *product(in_c, UNFINISHED), *product(internal, ["half-made"])]


def put(script, class_name, state):
    """Objects of a class, in a state: their names."""
    if state in FINISHED:
        return live(script, surface.classes()[class_name], state)
    script.step(f"import {class_name.rpartition('.')[0]}")
    if state == "not initialized":
        if script.step(SUBCLASS.format(class_name)):
            script.step("Forgetful()", "thing")
    elif script.step(f"thing = {class_name}.__new__({class_name})") and state == "refused":
        for _ in range(3):
            values = [script.argument("x") for _ in range(script.rng.randrange(4))]
            script.step(f"thing.__init__({', '.join(values)})")
    return ["thing"] if "thing" in script.names else []


def live(script, cls, state):
    """Objects of a class that were made in the usual way, and are perhaps over."""
    script.open()
    names = [name for name in script.own if isinstance(script.names[name], cls)]
    if not names:
        script.defect(f"no step of script.OPENINGS makes a {cls}")
    if state == "closed":
        for name in names:
            script.step(f"{HOLDERS.get(name, name)}.close()")
    elif state == "aborted":
        script.step("comm.abort('hostile')")
        for name in names:
            if hasattr(cls, "abort"):
                script.step(f"{name}.abort()")
    return names


def members(cls):
    """What is done to objects of a class: to internal ones only what takes no argument; their callers are known."""
    methods = surface.methods(cls)
    if not is_public(cls):
        methods = [name for name in methods if not required(getattr(cls, name))]
    return [*methods, *surface.attributes(cls), *surface.protocols(cls)]


def is_public(cls):
    """Whether users get objects of this class."""
    return issubclass(cls, tuple(surface.classes().values()))


def required(method):
    """Parameters that a method cannot do without."""
    return [parameter for parameter in surface.parameters(method) if parameter.default is inspect.Parameter.empty]


def shuffled(script, things):
    """These things in random order."""
    return script.rng.sample(things, len(things))

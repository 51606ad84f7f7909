"""What the attacks attack is complete: each public name, parameter and special method is reached."""

from dataclasses import is_dataclass

import arguments
import attack_states
import surface

import shmring
import shmring.ring


def callables():
    """Every public function and method by name."""
    found = surface.functions()
    for name, cls in surface.classes().items():
        found = found | {f"{name}.{method}": getattr(cls, method) for method in surface.methods(cls)}
    return found


def is_plain(value):
    """Whether it is an error or a record, which are not attacked."""
    return isinstance(value, type) and (issubclass(value, (Exception, tuple)) or is_dataclass(value))


def test_no_public_name_is_missing():
    public = {f"shmring.{name}": getattr(shmring, name) for name in shmring.__all__}
    public |= {f"shmring.ring.{name}": getattr(shmring.ring, name) for name in shmring.ring.__all__}
    wanted = {name for name, value in public.items() if callable(value) and not is_plain(value)}
    assert wanted - {f"shmring.{name}" for name in surface.ELSEWHERE} <= surface.exported().keys()
    assert surface.exported().keys() == surface.functions().keys() | surface.classes().keys()


def test_each_parameter_has_good_arguments():
    missing = {
        f"{name}({parameter.name})"
        for name, function in callables().items()
        for parameter in surface.parameters(function)
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name not in arguments.BY_NAME
    }
    assert not missing, "add them to arguments.BY_NAME"


class Plain:
    """Has what the interpreter gives each class, which differs between Pythons."""

    annotated: int = 0


def test_each_special_method_is_called_by_an_expression():
    known = {*surface.PROTOCOLS, *dir(Plain), "__slots__", "__annotations__", "__orig_bases__"}
    known |= {"__pyx_vtable__", "__reduce_cython__", "__setstate_cython__", "__release_buffer__"}
    missing = {
        f"{name}.{special}"
        for name, cls in surface.classes().items()
        for special in dir(cls)
        if special.startswith("__") and special not in known
    }
    assert not missing, "add them to surface.PROTOCOLS"


def test_each_public_class_is_attacked_in_each_state():
    for name in surface.classes():
        states = {state for other, state in attack_states.grid() if other == name}
        assert states >= set(attack_states.FINISHED), name
    assert ("shmring.Sender", "half-made") in attack_states.grid()
    assert ("shmring.collectives.engine.engine.Engine", "half-made") in attack_states.grid()

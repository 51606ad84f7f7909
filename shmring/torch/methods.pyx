"""How a method that torch calls is made: a group's own or torch's, and out of the sight of `torch.compile`.

Compilers and C++ call these in the midst of compiled steps, where `torch.compile` looks at every new frame of Python.
"""

import sys
from functools import wraps

import torch
from torch._C._dynamo.eval_frame import set_eval_frame


cdef dict modules = sys.modules
cdef object count_modes = torch._C._len_torch_dispatch_stack
cdef object Tensor = torch.Tensor
cdef object Parameter = torch.nn.Parameter
cdef object NOT_DISPATCHED = torch.Tensor.__torch_dispatch__


def unseen(function):
    """The function, run without the frame evaluation of `torch.compile`."""

    @wraps(function)
    def call(*args, **kwargs):
        evaluation = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            if evaluation is not None:
                set_eval_frame(evaluation)

    return call


cdef bint is_plain(x):
    """Whether this is a tensor whose memory a call may use: none of a subclass that sees the operators on it."""
    cls = type(x)
    return cls is Tensor or cls is Parameter or getattr(cls, "__torch_dispatch__", None) is NOT_DISPATCHED


cdef bint are_plain(list xs):
    for x in xs:
        if not (are_plain(<list> x) if type(x) is list else is_plain(x)):
            return False
    return True


cdef bint fits(tuple arguments, tuple forms):
    """Whether these are the arguments that a method of ours takes, the last of which may be absent."""
    cdef Py_ssize_t i, n = len(arguments)
    if n != len(forms) and n != len(forms) - 1:
        return False
    for i in range(n):
        x, form = arguments[i], forms[i]
        if form is list:
            if type(x) is not list or not are_plain(<list> x):
                return False
        elif form is Tensor:
            if not is_plain(x):
                return False
        elif type(x) is not form and not isinstance(x, form):
            return False
    return True


def method(own, by_operator, *forms):
    """A method of a process group: ``own`` if its arguments have these forms and are plain, else ``by_operator``.

    Torch's own method of that name takes more forms of arguments, and calls the operator, which dispatch modes,
    subclasses of tensors and compilers see.
    """
    cdef tuple wanted = forms

    @wraps(own)
    def call(self, *args, **kwargs):
        cdef Py_ssize_t n
        if kwargs:
            if len(kwargs) > 1 or "opts" not in kwargs:
                return by_operator(self, *args, **kwargs)
            args += (kwargs["opts"],)
        evaluation = set_eval_frame(None) if "torch._dynamo" in modules else None
        try:
            names = self._names    # of backends for other devices; None until they are looked up
            if not fits(args, wanted) or count_modes() or (names is None or names) and self._is_elsewhere(args):
                return by_operator(self, *args)
            n = len(args)
            if n == 2:    # the usual numbers, and quicker than a tuple
                return own(self, args[0], args[1])
            if n == 3:
                return own(self, args[0], args[1], args[2])
            return own(self, *args)
        finally:
            if evaluation is not None:
                set_eval_frame(evaluation)

    return call

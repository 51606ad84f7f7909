"""Tensors borrowed from other frameworks through DLPack: no import of any of them, nothing copied.

Two ways in. The C exchange table on the type (torch has it) fills a `DLTensor` in some 50 ns and cares for neither
``requires_grad`` nor bfloat16. Else ``__dlpack__`` returns a capsule, versioned if the producer can.
A borrowed tensor is valid while its keeper lives and the object is neither resized nor given other storage.
"""

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.exc cimport PyErr_Occurred, PyErr_SetString
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_DECREF

VERSION_ASKED = (SHMRING_DLPACK_MAJOR, 0)
PRODUCERS_MAX = 64

DEVICES = {
    2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 11: "rocm_host", 12: "ext",
    13: "cuda_managed", 14: "oneapi", 15: "webgpu", 16: "hexagon", 17: "maia", 18: "trn",
}

cdef dict _producers = {}


cdef class Loan:
    """A managed tensor in our hands; its deleter runs when the last keeper lets go."""
    cdef DLManagedTensor *plain
    cdef DLManagedTensorVersioned *versioned

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef Producer producer_of(object x):
    """The `Producer` of ``type(x)``; its ``lends`` is false if the type knows nothing of DLPack."""
    cdef object found = _producers.get(type(x))
    if found is None:
        if len(_producers) >= PRODUCERS_MAX:     # programs that make types as they go must not be kept alive by us
            _producers.clear()
        found = _producers[type(x)] = _look_up(type(x))
    return <Producer>found


cdef Producer _look_up(type cls):
    cdef Producer producer = Producer.__new__(Producer)
    cdef object capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    cdef DLPackExchangeAPI *api = NULL
    if PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        api = <DLPackExchangeAPI *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while api != NULL and api.version.major != SHMRING_DLPACK_MAJOR:
            api = api.prev_api
    producer.api = api
    producer.lends = api != NULL or hasattr(cls, "__dlpack__")
    producer.always_writable = any(base.__module__.partition(".")[0] == "torch" for base in cls.__mro__)
    producer.is_conj = getattr(cls, "is_conj", None)
    producer.is_neg = getattr(cls, "is_neg", None)
    return producer


cdef bint is_dense(const DLTensor *t) noexcept:
    """Whether the elements lie one after the other in C order."""
    cdef int64_t expected = 1
    cdef int d
    if t.strides == NULL:
        return True
    for d in range(t.ndim - 1, -1, -1):
        if t.shape[d] == 0:
            return True
    for d in range(t.ndim - 1, -1, -1):
        if t.shape[d] != 1 and t.strides[d] != expected:
            return False
        expected *= t.shape[d]
    return True


cdef object borrow_tensor(object x, Producer producer, DLTensor *t, bint writable):
    """Fill ``t`` with what ``x`` lends, in main memory, checked; return the keeper (``x`` itself or a `Loan`).

    With ``writable``, memory that is read-only, or a copy made for us, is refused.
    """
    cdef object keeper
    if producer.api == NULL:
        keeper = _borrow_capsule(x, t, writable)
    elif producer.api.tensor_from_object == NULL or (writable and not producer.always_writable):
        keeper = _borrow_managed(x, producer.api, t, writable)
    else:
        try:
            _check(producer.api.tensor_from_object(<void *>x, t))
        except Exception as error:
            raise _cannot_lend(x, error) from error
        keeper = x

    cdef bint empty = False
    cdef bint single = True
    cdef int d
    if t.device.device_type != SHMRING_DL_CPU:
        raise _elsewhere(x, t.device.device_type, t.device.device_id)
    for d in range(t.ndim):
        empty |= t.shape[d] == 0
        single &= t.shape[d] == 1
    if t.data == NULL and not empty:
        raise TypeError(f"{_kind(x)} has no memory of its own (a fake, zero or wrapper tensor); pass the tensor within")
    t.data = <char *>t.data + t.byte_offset if t.data != NULL else NULL
    t.byte_offset = 0

    # Lazily conjugated or negated: the bytes are not the values. Both questions cost a Python call, so ask only where
    # the answer can be yes: what is conjugated is complex; what is negated is the imaginary half of something
    # conjugated, hence strided, unless it is a single element.
    if t.dtype.code == SHMRING_DL_COMPLEX and producer.is_conj is not None and producer.is_conj(x):
        raise TypeError(f"{_kind(x)} is lazily conjugated: pass x.resolve_conj()")
    if producer.is_neg is not None and (t.dtype.code == SHMRING_DL_COMPLEX or single or not is_dense(t)):
        if producer.is_neg(x):
            raise TypeError(f"{_kind(x)} is lazily negated: pass x.resolve_neg()")
    return keeper


cdef object _borrow_managed(object x, DLPackExchangeAPI *api, DLTensor *t, bint writable):
    cdef Loan loan = Loan.__new__(Loan)
    try:
        _check(api.managed_from_object(<void *>x, &loan.versioned))
    except Exception as error:
        raise _cannot_lend(x, error) from error
    _open_versioned(x, loan, t, writable)
    return loan


cdef object _borrow_capsule(object x, DLTensor *t, bint writable):
    cdef Loan loan = Loan.__new__(Loan)
    cdef object capsule, device
    try:
        device = x.__dlpack_device__()
        if int(device[0]) != SHMRING_DL_CPU:
            raise _elsewhere(x, int(device[0]), int(device[1]))
        try:
            capsule = x.__dlpack__(max_version=VERSION_ASKED)
        except TypeError:       # a producer older than versions
            capsule = x.__dlpack__()
    except TypeError:
        raise
    except Exception as error:
        raise _cannot_lend(x, error) from error

    # Renaming is how a capsule is told that its content has been taken; the deleter is then ours to call.
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        loan.versioned = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        _open_versioned(x, loan, t, writable)
    elif PyCapsule_IsValid(capsule, "dltensor"):
        loan.plain = <DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        # This form has no flags. Whoever also has the buffer protocol was asked for a writable one there and had
        # none (jax: immutable), so it has not vouched for this memory either.
        if writable and PyObject_CheckBuffer(x):
            raise _read_only(x)
        t[0] = loan.plain.dl_tensor
    else:
        raise TypeError(f"{_kind(x)}.__dlpack__() returned {capsule!r}, not a DLPack capsule")
    return loan


cdef int _open_versioned(object x, Loan loan, DLTensor *t, bint writable) except -1:
    cdef DLManagedTensorVersioned *managed = loan.versioned
    if managed.version.major != SHMRING_DLPACK_MAJOR:
        raise TypeError(f"{_kind(x)} speaks DLPack {managed.version.major}.{managed.version.minor}; "
                        f"known is major version {SHMRING_DLPACK_MAJOR}: pass np.asarray(x)")
    if writable and managed.flags & SHMRING_DL_READ_ONLY:
        raise _read_only(x)
    if writable and managed.flags & SHMRING_DL_IS_COPIED:
        raise TypeError(f"{_kind(x)} lends only a copy of its memory, so nothing can be written into it")
    t[0] = managed.dl_tensor
    return 0


cdef object new_tensor(Producer producer, DLTensor *prototype):
    """A new object of the framework that owns ``producer.api``: dtype, shape and device as in ``prototype``."""
    cdef DLManagedTensorVersioned *managed = NULL
    cdef void *made = NULL
    _check(producer.api.allocate(prototype, &managed, NULL, _set_error))
    _check(producer.api.object_from_managed(managed, &made))    # takes over `managed`
    cdef object tensor = <object>made
    Py_DECREF(tensor)                                           # `made` was a reference of our own
    return tensor


cdef int _check(int status) except -1:
    """Raise what the producer has set."""
    if status != 0 and PyErr_Occurred() == NULL:
        raise RuntimeError("the exchange table's function failed without saying why")
    return -1 if status != 0 else 0


cdef void _set_error(void *context, const char *kind, const char *message) noexcept with gil:
    PyErr_SetString(MemoryError if kind == b"MemoryError" else RuntimeError, message)


def _kind(x):
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _read_only(x):
    return TypeError(f"{_kind(x)} is read-only: pass a writable out, or a copy of it")


def _elsewhere(x, device_type, device_id):
    name = DEVICES.get(device_type, f"device type {device_type}")
    return TypeError(f"{_kind(x)} is on {name}:{device_id}, not in main memory: copy it to the CPU first")


def _cannot_lend(x, error):
    said = str(error).partition("\n")[0]
    return TypeError(f"{_kind(x)} cannot lend its memory: {said}")

"""Tensors of other frameworks, borrowed through DLPack: imports none of them, copies nothing.

Two ways in. The C exchange table on the type (torch has one) fills a `DLTensor` in some 50 ns, for tensors with
``requires_grad`` and for bfloat16 too. Else ``__dlpack__`` returns a capsule, versioned if the framework can.
A borrowed tensor is valid while its owner exists and the object is neither resized nor given other storage.
"""

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.exc cimport PyErr_Occurred, PyErr_SetString
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_DECREF

VERSION_ASKED = (SHMRING_DLPACK_MAJOR, 0)
EXPORTERS_MAX = 64

DEVICES = {
    2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 11: "rocm_host", 12: "ext",
    13: "cuda_managed", 14: "oneapi", 15: "webgpu", 16: "hexagon", 17: "maia", 18: "trn",
}

cdef dict _exporters = {}


cdef class ManagedTensor:
    """A managed tensor that was exported to us; its deleter runs with this object."""
    cdef DLManagedTensor *plain
    cdef DLManagedTensorVersioned *versioned

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef Exporter exporter_of(object x):
    """The `Exporter` of ``type(x)``; its ``exports`` is false if the type has no DLPack."""
    cdef object found = _exporters.get(type(x))
    if found is None:
        if len(_exporters) >= EXPORTERS_MAX:     # bounds what programs keep alive that create types at run time
            _exporters.clear()
        found = _exporters[type(x)] = _look_up(type(x))
    return <Exporter>found


cdef Exporter _look_up(type cls):
    cdef Exporter exporter = Exporter.__new__(Exporter)
    cdef object capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    cdef DLPackExchangeAPI *api = NULL
    if PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        api = <DLPackExchangeAPI *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while api != NULL and api.version.major != SHMRING_DLPACK_MAJOR:
            api = api.prev_api
    exporter.api = api
    exporter.exports = api != NULL or hasattr(cls, "__dlpack__")
    exporter.always_writable = "torch" in [base.__module__.partition(".")[0] for base in cls.__mro__]
    exporter.is_conj = getattr(cls, "is_conj", None)
    exporter.is_neg = getattr(cls, "is_neg", None)
    return exporter


cdef bint is_dense(const DLTensor *t) noexcept:
    """Whether the elements are contiguous in C order."""
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


cdef object borrow_tensor(object x, Exporter exporter, DLTensor *t, bint writable):
    """Fill ``t`` with the tensor ``x``, checked, in main memory; return its owner (``x`` itself or a `ManagedTensor`).

    With ``writable``, read-only memory, or a copy that was made for the export, is refused.
    """
    cdef object owner
    if exporter.api == NULL:
        owner = _borrow_capsule(x, t, writable)
    elif exporter.api.tensor_from_object == NULL or (writable and not exporter.always_writable):
        owner = _borrow_managed(x, exporter.api, t, writable)
    else:
        try:
            _check(exporter.api.tensor_from_object(<void *>x, t))
        except Exception as error:
            raise _not_exported(x, error) from error
        owner = x

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

    # Lazily conjugated or negated: the bytes are not the values. Both checks cost a Python call, so they are made only
    # where they can be true: a conjugated tensor is complex; a negated one is the imaginary half of a conjugated one,
    # hence strided, unless it is a single element.
    if t.dtype.code == SHMRING_DL_COMPLEX and exporter.is_conj is not None and exporter.is_conj(x):
        raise TypeError(f"{_kind(x)} is lazily conjugated: pass x.resolve_conj()")
    if exporter.is_neg is not None and (t.dtype.code == SHMRING_DL_COMPLEX or single or not is_dense(t)):
        if exporter.is_neg(x):
            raise TypeError(f"{_kind(x)} is lazily negated: pass x.resolve_neg()")
    return owner


cdef object _borrow_managed(object x, DLPackExchangeAPI *api, DLTensor *t, bint writable):
    cdef ManagedTensor owner = ManagedTensor.__new__(ManagedTensor)
    try:
        _check(api.managed_from_object(<void *>x, &owner.versioned))
    except Exception as error:
        raise _not_exported(x, error) from error
    _open_versioned(x, owner, t, writable)
    return owner


cdef object _borrow_capsule(object x, DLTensor *t, bint writable):
    cdef ManagedTensor owner = ManagedTensor.__new__(ManagedTensor)
    cdef object capsule, device
    try:
        device = x.__dlpack_device__()
        if int(device[0]) != SHMRING_DL_CPU:
            raise _elsewhere(x, int(device[0]), int(device[1]))
        try:
            capsule = x.__dlpack__(max_version=VERSION_ASKED)
        except TypeError:       # an exporter older than versions
            capsule = x.__dlpack__()
    except TypeError:
        raise
    except Exception as error:
        raise _not_exported(x, error) from error

    # Renaming marks the content of a capsule as taken; the deleter is then ours to call.
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        owner.versioned = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        _open_versioned(x, owner, t, writable)
    elif PyCapsule_IsValid(capsule, "dltensor"):
        owner.plain = <DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        # This form has no flags. An object that also has the buffer protocol refused a writable buffer before (jax:
        # immutable), so its tensor is not writable either.
        if writable and PyObject_CheckBuffer(x):
            raise _read_only(x)
        t[0] = owner.plain.dl_tensor
    else:
        raise TypeError(f"{_kind(x)}.__dlpack__() returned {capsule!r}, not a DLPack capsule")
    return owner


cdef int _open_versioned(object x, ManagedTensor owner, DLTensor *t, bint writable) except -1:
    cdef DLManagedTensorVersioned *managed = owner.versioned
    if managed.version.major != SHMRING_DLPACK_MAJOR:
        raise TypeError(f"{_kind(x)} has DLPack {managed.version.major}.{managed.version.minor}; "
                        f"supported is major version {SHMRING_DLPACK_MAJOR}: pass np.asarray(x)")
    if writable and managed.flags & SHMRING_DL_READ_ONLY:
        raise _read_only(x)
    if writable and managed.flags & SHMRING_DL_IS_COPIED:
        raise TypeError(f"{_kind(x)} exports only a copy of its memory, which is useless as a target")
    t[0] = managed.dl_tensor
    return 0


cdef object new_tensor(Exporter exporter, DLTensor *prototype):
    """A new object of the framework that owns ``exporter.api``: dtype, shape and device as in ``prototype``."""
    cdef DLManagedTensorVersioned *managed = NULL
    cdef void *made = NULL
    _check(exporter.api.allocate(prototype, &managed, NULL, _set_error))
    cdef int status = exporter.api.object_from_managed(managed, &made)
    if status != 0 and managed.deleter != NULL:
        managed.deleter(managed)                                # only what succeeds takes it over
    _check(status)
    cdef object tensor = <object>made
    Py_DECREF(tensor)                                           # `made` was a reference of our own
    return tensor


cdef int _check(int status) except -1:
    """Raise the exception that the exporter has set."""
    if status != 0 and PyErr_Occurred() == NULL:
        raise RuntimeError("a function of the DLPack exchange table failed without an exception")
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


def _not_exported(x, error):
    reason = str(error).partition("\n")[0]
    return TypeError(f"{_kind(x)} does not export its memory: {reason}")

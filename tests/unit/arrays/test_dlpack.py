"""DLPack's structs as other producers may fill them, built byte by byte with ctypes."""

import ctypes

import numpy as np
import pytest
from support import compiled

arrays = compiled.load("array_hooks")

PTR = ctypes.c_void_p
CPU, CUDA = 1, 2
FLOAT32 = (2, 32, 1)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [PTR, ctypes.c_char_p, PTR]
capsule_name = ctypes.pythonapi.PyCapsule_GetName
capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", PTR),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", PTR),
        ("strides", PTR),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", PTR), ("deleter", PTR)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", PTR),
        ("deleter", PTR),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev", PTR),
        ("allocate", PTR),
        ("managed_from_object", PTR),
        ("object_from_managed", PTR),
        ("tensor_from_object", PTR),
        ("stream", PTR),
    ]


class Lender:
    """Lends ``memory`` (bytes of four float32) under whatever description the test wants."""

    def __init__(
        self,
        versioned=True,
        *,
        shape=(4,),
        strides=(1,),
        major=1,
        flags=0,
        device=CPU,
        dtype=FLOAT32,
        byte_offset=0,
        nbytes=16,
        data=...,
    ):
        self.memory = ctypes.create_string_buffer(nbytes)
        self.deleted = 0
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.device = device
        self.deleter = ctypes.PYFUNCTYPE(None, PTR)(self.count)
        where = ctypes.addressof(self.memory) if data is ... else data
        tensor = Tensor(
            where,
            device,
            0,
            len(shape),
            *dtype,
            ctypes.cast(self.shape, PTR),
            ctypes.cast(self.strides, PTR),
            byte_offset,
        )
        deleter = ctypes.cast(self.deleter, PTR)
        if versioned:
            self.name, self.managed = b"dltensor_versioned", Versioned(major, 0, None, deleter, flags, tensor)
        else:
            self.name, self.managed = b"dltensor", Managed(tensor, None, deleter)
        self.capsules = []

    def count(self, managed):
        assert managed == ctypes.addressof(self.managed)
        self.deleted += 1
        self.last_seen = self.memory.raw

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        self.capsules.append(new_capsule(ctypes.addressof(self.managed), self.name, None))
        return self.capsules[-1]


@pytest.mark.parametrize("versioned", [False, True])
def test_the_capsule_is_marked_used_and_the_deleter_called_once(versioned):
    x = Lender(versioned)
    assert arrays.describe(x, writable=True)[0] == ctypes.addressof(x.memory)
    assert x.deleted == 1
    assert capsule_name(x.capsules[0]) == (b"used_dltensor_versioned" if versioned else b"used_dltensor")


@pytest.mark.parametrize("versioned", [False, True])
def test_without_strides_a_tensor_is_dense_and_the_byte_offset_counts(versioned):
    x = Lender(versioned, shape=(1, 3), strides=None, byte_offset=4)
    assert arrays.describe(x, True) == (ctypes.addressof(x.memory) + 4, 3, 12, "float32", False)


@pytest.mark.parametrize("versioned", [False, True])
def test_a_temporary_keeps_the_loan_until_it_is_given_back(versioned):
    x = Lender(versioned, shape=(2,), strides=(2,))
    arrays.write_bytes(x, np.float32([1, 2]).tobytes())
    assert x.deleted == 1
    assert np.frombuffer(x.last_seen, "f4").tolist() == [1, 0, 2, 0]


def test_an_unaligned_tensor_is_copied():
    x = Lender(nbytes=17, byte_offset=1)
    assert arrays.describe(x, writable=True)[4]
    arrays.write_bytes(x, np.float32([1, 2, 3, 4]).tobytes())
    assert x.memory.raw == b"\0" + np.float32([1, 2, 3, 4]).tobytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"major": 2}, r"has DLPack 2\.0"),
        ({"flags": 1}, "read-only"),
        ({"flags": 2}, "only a copy"),
        ({"device": CUDA}, "is on cuda:0, not in main memory"),
        ({"device": 99}, "device type 99:0"),
        ({"data": None}, "no memory of its own"),
        ({"dtype": (2, 32, 4)}, "DLPack type 2"),
        ({"dtype": (0, 4, 1)}, "DLPack type 0, 4 bits"),
        ({"dtype": (3, 64, 1)}, "DLPack type 3"),
        ({"dtype": (4, 32, 1)}, "DLPack type 4"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_and_every_loan_returned(changed, message):
    x = Lender(**changed)
    with pytest.raises(TypeError, match=message):
        arrays.write_bytes(x, bytes(16))
    assert x.deleted == len(x.capsules)
    assert not any(x.memory.raw)


def test_a_capsule_of_another_kind_is_refused():
    x = Lender()
    x.name = b"something"
    with pytest.raises(TypeError, match="not a DLPack capsule"):
        arrays.describe(x)
    assert x.deleted == 0


def exporter(tables, bare=False):
    """A type with the exchange tables of the given major versions, newest first; only major 1 can be used.

    With ``bare`` it also hands out tensors without flags.
    """
    made = {}

    def managed_from_object(x, out):
        ctypes.cast(out, ctypes.POINTER(PTR))[0] = ctypes.addressof(x.managed)
        return 0

    made["managed"] = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, PTR)(managed_from_object)

    def tensor_from_object(x, out):
        ctypes.cast(out, ctypes.POINTER(Tensor))[0] = x.managed.tensor
        return 0

    made["bare"] = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, PTR)(tensor_from_object)
    chain = None
    for major in reversed(tables):
        usable = ctypes.cast(made["managed"], PTR) if major == 1 else None
        made[major] = Table(
            major,
            0,
            ctypes.addressof(chain) if chain else None,
            None,
            usable,
            None,
            ctypes.cast(made["bare"], PTR) if bare else None,
            None,
        )
        chain = made[major]
    capsule_of = new_capsule(ctypes.addressof(chain), b"dlpack_exchange_api", None)
    return type("Exporter", (Lender,), {"__dlpack_c_exchange_api__": capsule_of, "made": made, "__dlpack__": None})


@pytest.mark.parametrize("tables", [[1], [2, 1], [3, 2, 1]], ids=str)
def test_the_exchange_table_of_major_one_is_found_and_its_managed_form_serves_when_there_is_no_other(tables):
    x = exporter(tables)()
    assert arrays.describe(x, writable=True) == (ctypes.addressof(x.memory), 4, 16, "float32", False)
    assert arrays.shape(x) == (4,)
    assert x.deleted == 2
    assert not x.capsules


@pytest.mark.parametrize("bare", [False, True])
def test_the_read_only_flag_counts_through_the_exchange_table(bare):
    x = exporter([1], bare)(flags=1)
    assert arrays.read_bytes(x) == bytes(16)
    assert x.deleted == (0 if bare else 1)  # nothing is lent where a bare tensor will do
    with pytest.raises(TypeError, match="read-only"):
        arrays.describe(x, writable=True)
    assert x.deleted == (1 if bare else 2)


def test_a_new_tensor_that_the_exporter_cannot_wrap_is_given_back():
    kind, x = exporter([1]), Lender()

    def allocate(prototype, out, context, set_error):
        ctypes.cast(out, ctypes.POINTER(PTR))[0] = ctypes.addressof(x.managed)
        return 0

    def refuse(managed, out):
        return -1

    kind.made["allocate"] = ctypes.PYFUNCTYPE(ctypes.c_int, PTR, PTR, PTR, PTR)(allocate)
    kind.made["refuse"] = ctypes.PYFUNCTYPE(ctypes.c_int, PTR, PTR)(refuse)
    kind.made[1].allocate = ctypes.cast(kind.made["allocate"], PTR)
    kind.made[1].object_from_managed = ctypes.cast(kind.made["refuse"], PTR)
    with pytest.raises(RuntimeError, match="without an exception"):
        arrays.new_like(kind(), (4,))
    assert x.deleted == 1


def test_without_a_usable_table_the_capsule_serves():
    class Newer(exporter([2])):
        __dlpack__ = Lender.__dlpack__

    x = Newer()
    assert arrays.describe(x, writable=True)[0] == ctypes.addressof(x.memory)
    assert len(x.capsules) == 1


def test_many_short_lived_types_are_distinguished():
    for i in range(200):
        kind = type(f"Lender{i}", (Lender,), {})
        assert arrays.describe(kind(), writable=True)[1] == 4
    with pytest.raises(TypeError, match="not an array"):
        arrays.describe(type("Nothing", (), {})())

"""Arrays of every kind become pointer, count and dtype; the memory at the pointer has the values that NumPy reads."""

import array
import gc
import mmap
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import compiled

from shmring.dtypes import DTYPES

arrays = compiled.load("array_hooks")


def counting(shape, dtype):
    """Different values in each element, as far as the dtype allows, and never zero in the first."""
    n = int(np.prod(shape))
    return (np.arange(1, n + 1) % 101).astype(dtype).reshape(shape)


def native_bytes(x):
    return np.ascontiguousarray(x).astype(x.dtype.newbyteorder("=")).tobytes()


# ---- plain ndarrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3), (3, 0, 2), (2, 1, 4, 3)])
@pytest.mark.parametrize("writable", [False, True])
def test_a_dense_ndarray_of_every_dtype_lends_its_own_memory(known, shape, writable):
    x = counting(shape, np.dtype(known.name))
    address, count, nbytes, name, is_copy = arrays.describe(x, writable)
    assert (address, count, nbytes, name, is_copy) == (x.ctypes.data, x.size, x.nbytes, known.name, False)
    assert arrays.is_fast(x, writable)


@pytest.mark.parametrize("char", "bBhHiIlLqQefdFD?")
def test_every_c_type_of_numpy_has_a_dtype_by_its_size(char):
    x = np.ones(3, char)
    assert arrays.describe(x)[3] == x.dtype.name
    assert arrays.is_fast(x)


def test_a_read_only_ndarray_is_a_fast_source_and_no_target():
    x = np.ones(3, "f4")
    x.flags.writeable = False
    assert arrays.is_fast(x)
    assert not arrays.is_fast(x, writable=True)
    with pytest.raises(TypeError, match=r"float32 and shape \(3,\) is read-only"):
        arrays.describe(x, writable=True)


def test_a_subclass_lends_its_own_memory():
    class Mine(np.ndarray):
        pass

    x = np.arange(4.0).view(Mine)
    assert arrays.describe(x, writable=True)[:2] == (x.ctypes.data, 4)
    assert not arrays.is_fast(x)


def test_a_masked_array_is_refused_because_its_mask_would_be_lost():
    with pytest.raises(TypeError, match="masked"):
        arrays.describe(np.ma.masked_array([1.0, 2.0], [True, False]))


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">u2", ">c16"])
def test_foreign_byte_order_is_swapped_on_the_way_in_and_back(dtype):
    x = counting((2, 3), dtype)
    assert arrays.read_bytes(x) == native_bytes(x)
    new = counting((2, 3), np.dtype(dtype).newbyteorder("=")) + 7
    arrays.write_bytes(x, new.tobytes())
    assert x.dtype == np.dtype(dtype)
    assert np.array_equal(x, new)


def test_an_unaligned_array_is_copied_on_the_way_in_and_back():
    raw = np.zeros(33, np.uint8)
    x = raw[1:].view("f8")
    assert not x.flags.aligned
    assert arrays.describe(x, writable=True)[4]
    arrays.write_bytes(x, np.arange(4.0).tobytes())
    assert arrays.read_bytes(x) == np.arange(4.0).tobytes() == raw[1:].tobytes()
    assert raw[0] == 0


# ---- strides ---------------------------------------------------------------------------------------------------------

axes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-3, -2, -1, 1, 2, 3])), min_size=0, max_size=4)


@st.composite
def strided_views(draw):
    """A base full of sevens, and a view of it with steps of either sign and its axes in any order."""
    taken = draw(axes)
    dtype = np.dtype(draw(st.sampled_from([d.name for d in DTYPES])))
    base = np.full([n * abs(step) + 1 for n, step in taken], 7).astype(dtype)
    index = tuple(slice(0, n * step, step) if step > 0 else slice(n * -step, 0, step) for n, step in taken)
    return base, base[(*index, ...)].transpose(draw(st.permutations(range(len(taken)))))


@given(strided_views())
def test_any_view_reads_in_c_order(case):
    base, view = case
    base[...] = counting(base.shape, base.dtype)
    assert arrays.read_bytes(view) == view.tobytes()
    assert arrays.describe(view)[1:3] == (view.size, view.size * view.itemsize)


@given(strided_views())
def test_any_view_is_written_in_c_order_and_nothing_around_it(case):
    base, view = case
    expected = base.copy()
    new = counting(view.shape, view.dtype)
    # The same places of the copy, by the same strides.
    offset = view.ctypes.data - base.ctypes.data if view.size else 0
    np.ndarray(view.shape, view.dtype, expected, offset, view.strides)[...] = new
    arrays.write_bytes(view, new.tobytes())
    assert base.tobytes() == expected.tobytes()


@st.composite
def stride_tricks(draw):
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(-40, 40), min_size=len(shape), max_size=len(shape)))
    return shape, strides, draw(st.sampled_from([1, 2, 4]))


@given(stride_tricks())
def test_a_target_is_refused_exactly_when_two_elements_share_a_byte(case):
    shape, strides, itemsize = case
    memory = np.zeros(1024, np.uint8)
    x = np.ndarray(shape, f"u{itemsize}", memory, 512, strides)
    touched = [512 + int(np.dot(index, strides)) + byte for index in np.ndindex(*shape) for byte in range(itemsize)]
    if len(set(touched)) < len(touched):
        with pytest.raises(ValueError, match="share memory"):
            arrays.write_bytes(x, bytes(x.nbytes))
        assert not memory.any()
    else:
        arrays.write_bytes(x, b"\xff" * len(touched))
        assert sorted(touched) == np.flatnonzero(memory).tolist()


def test_a_broadcast_view_is_a_source():
    x = np.broadcast_to(np.float32([1, 2]), (3, 2))
    assert arrays.read_bytes(x) == np.float32([1, 2] * 3).tobytes()


def test_a_target_is_left_alone_when_it_is_not_given_back():
    x = np.arange(6.0)[::2]
    address, *_, is_copy = arrays.describe(x, writable=True)
    assert is_copy
    assert address != x.ctypes.data
    assert x.tolist() == [0, 2, 4]


def test_nothing_holds_on_to_an_array_after_the_call():
    for x in (np.arange(6.0), np.arange(6.0)[::2], bytearray(8), Lender(np.arange(6.0)), Lender(np.arange(6.0)[::2])):
        before = sys.getrefcount(x)
        arrays.describe(x, writable=True)
        arrays.read_bytes(x)
        arrays.new_like(x, (2,))
        arrays.shape(x)
        assert sys.getrefcount(x) == before


# ---- dtypes that are not ours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        np.array([None, 1]),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([3], "m8[s]"),
        np.zeros(2, [("a", "i4"), ("b", "O")]),
    ],
    ids=lambda x: str(x.dtype),
)
def test_objects_strings_and_dates_are_refused_by_name(x, opaque):
    with pytest.raises(TypeError, match="dtype"):
        arrays.describe(x, opaque=opaque)


@pytest.mark.parametrize("dtype", ["longdouble", [("a", "i4"), ("b", "f8")], "V5", ml_dtypes.float8_e5m2fnuz])
def test_plain_data_of_other_types_moves_as_opaque_bytes_only_where_allowed(dtype):
    x = np.zeros((2, 3), dtype)
    with pytest.raises(TypeError, match="is not one of"):
        arrays.describe(x)
    assert arrays.describe(x, True, True)[1:] == (6, x.nbytes, "opaque", False)
    assert arrays.describe(x.T, True, True)[1:] == (6, x.nbytes, "opaque", True)
    raw = x.view(np.uint8)
    raw[...] = counting(raw.shape, np.uint8)
    assert arrays.read_bytes(x.T, opaque=True) == x.T.tobytes()


# ---- the buffer protocol ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_array_array_lends_its_own_memory(code):
    x = array.array(code, [1, 2, 3])
    dtype = np.dtype(code)
    assert arrays.describe(x, writable=True) == (x.buffer_info()[0], 3, 3 * dtype.itemsize, dtype.name, False)


def test_a_bytearray_is_a_target_of_uint8_and_stays_resizable_afterwards():
    x = bytearray(5)
    arrays.write_bytes(x, b"hello")
    assert x == b"hello"
    x += b"!"
    assert arrays.describe(x)[1:] == (6, 6, "uint8", False)


def test_bytes_are_a_source_and_no_target():
    assert arrays.read_bytes(b"abc") == b"abc"
    with pytest.raises(TypeError, match="bytes is read-only"):
        arrays.write_bytes(b"abc", b"xyz")


def test_an_mmap_is_a_target():
    with mmap.mmap(-1, 4096) as x:
        arrays.write_bytes(x, b"z" * 4096)
        assert x[:] == b"z" * 4096


def test_a_strided_memoryview_is_read_and_written():
    base = array.array("i", range(6))
    view = memoryview(base)[::-2]
    assert arrays.read_bytes(view) == array.array("i", [5, 3, 1]).tobytes()
    arrays.write_bytes(view, array.array("i", [10, 20, 30]).tobytes())
    assert base.tolist() == [0, 30, 2, 20, 4, 10]


@pytest.mark.parametrize("dtype", ["?", "e", "F", "D", "<i4", ">i4", ">f8", "l", "=l"])
def test_formats_are_read_as_numpy_reads_them(dtype):
    x = counting((2, 3), dtype)
    assert arrays.describe(memoryview(x))[3] == x.dtype.newbyteorder("=").name
    assert arrays.read_bytes(memoryview(x)) == native_bytes(x)
    assert arrays.shape(memoryview(x)) == (2, 3)


def test_an_unaligned_buffer_is_copied():
    memory = bytearray(17)  # itself aligned, as all that malloc returns
    x = memoryview(memory)[1:].cast("d")
    assert arrays.describe(x, writable=True)[4]
    arrays.write_bytes(x, np.float64([1, 2]).tobytes())
    assert arrays.read_bytes(x) == memory[1:] == np.float64([1, 2]).tobytes()


def test_a_numpy_scalar_is_a_source_and_no_target():
    assert arrays.read_bytes(np.float32(3)) == np.float32(3).tobytes()
    assert arrays.describe(ml_dtypes.bfloat16(3))[1:4] == (1, 2, "bfloat16")
    with pytest.raises(TypeError, match=r"NumPy scalar \(float32\) cannot be written"):
        arrays.describe(np.float32(3), writable=True)


@pytest.mark.parametrize(
    "x", [1, 2.5, True, [1.0], (1, 2), "text", None, {1: 2}, object()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("ask", [arrays.describe, arrays.shape, lambda x: arrays.new_like(x, (2,))])
def test_what_is_no_array_is_refused_with_the_way_out(x, ask):
    with pytest.raises(TypeError, match=r"is not an array: pass np\.asarray"):
        ask(x)


# ---- new outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", DTYPES, ids=lambda d: d.name)
def test_new_outputs_have_the_dtype_and_the_shape_asked_for(known):
    x = np.zeros(3, np.dtype(known.name))
    arrays.describe(x)  # after the first array of an extension its number is known
    for shape in [(), (0, 2), (2, 3)]:
        new = arrays.new_like(x, shape)
        assert (type(new), new.dtype, new.shape) == (np.ndarray, x.dtype, shape)
        assert arrays.is_fast(new, writable=True)


def test_new_outputs_are_native_plain_ndarrays_for_swapped_subclasses_and_buffers():
    subclass = np.ones(2).view(np.recarray)
    for x, dtype in [
        (np.ones(2, ">f4"), "f4"),
        (subclass, "f8"),
        (bytearray(2), "u1"),
        (memoryview(b""), "u1"),
        (array.array("h"), "i2"),
        (np.float32(1), "f4"),
    ]:
        new = arrays.new_like(x, (2, 3, 4))
        assert (type(new), new.dtype, new.dtype.isnative, new.shape) == (np.ndarray, np.dtype(dtype), True, (2, 3, 4))


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (1,) * 65])
@pytest.mark.parametrize("like", [np.ones(2), bytearray(2)], ids=["ndarray", "bytearray"])
def test_impossible_shapes_are_refused(shape, like):
    with pytest.raises(ValueError, match=r"negative|dimensions"):
        arrays.new_like(like, shape)


# ---- DLPack, from a producer of our own ------------------------------------------------------------------------------


class Lender:
    """A framework whose arrays know DLPack alone; NumPy does the work."""

    def __init__(self, content):
        self.content = content

    def __dlpack_device__(self):
        return self.content.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.content.__dlpack__(**options)


class OldLender(Lender):
    """The same from before versions and flags."""

    def __dlpack__(self):
        return self.content.__dlpack__()


@pytest.mark.parametrize("lender", [Lender, OldLender])
@pytest.mark.parametrize("name", [d.name for d in DTYPES if not d.is_extension])
def test_a_dlpack_capsule_lends_its_own_memory(lender, name):
    content = counting((2, 3), name)
    x = lender(content)
    assert arrays.describe(x, writable=True) == (content.ctypes.data, 6, content.nbytes, name, False)
    assert arrays.shape(x) == (2, 3)
    assert arrays.new_like(x, (4,)).dtype == name


@pytest.mark.parametrize("lender", [Lender, OldLender])
def test_a_strided_dlpack_capsule_is_read_and_written(lender):
    content = np.arange(24, dtype="f4").reshape(4, 6)
    x = lender(content[::-2, 1::2])
    assert arrays.read_bytes(x) == content[::-2, 1::2].tobytes()
    new = np.full((2, 3), -1, "f4")
    arrays.write_bytes(x, new.tobytes())
    assert (content == -1).sum() == 6
    assert (content[::-2, 1::2] == -1).all()


def test_the_read_only_flag_of_a_versioned_capsule_is_honoured():
    content = np.arange(3.0)
    content.flags.writeable = False
    x = Lender(content)
    assert arrays.read_bytes(x) == content.tobytes()
    with pytest.raises(TypeError, match="read-only"):
        arrays.describe(x, writable=True)


def test_a_capsule_dropped_gives_its_memory_back():
    content = np.arange(3.0)
    before = sys.getrefcount(content)
    for _ in range(3):
        arrays.describe(Lender(content), writable=True)
        arrays.describe(Lender(content[::2]), writable=True)
    gc.collect()
    assert sys.getrefcount(content) == before


# ---- torch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.torch
@pytest.mark.parametrize("known", DTYPES, ids=lambda d: d.name)
def test_a_tensor_of_every_dtype_lends_its_own_memory(torch, known):
    if not hasattr(torch, known.name):
        pytest.skip("torch has no such dtype")
    x = torch.ones((2, 3)).to(getattr(torch, known.name))
    assert arrays.describe(x, writable=True) == (x.data_ptr(), 6, 6 * known.itemsize, known.name, False)
    assert arrays.shape(x) == (2, 3)
    new = arrays.new_like(x, (2, 0, 4))
    assert (type(new), new.dtype, tuple(new.shape)) == (torch.Tensor, x.dtype, (2, 0, 4))


@pytest.mark.torch
def test_a_tensor_without_elements_and_one_without_axes_are_arrays(torch):
    assert arrays.describe(torch.empty(0, 3), writable=True)[1:] == (0, 0, "float32", False)
    assert arrays.describe(torch.empty(3, 0)[:, ::2], writable=True)[1:] == (0, 0, "float32", False)
    x = torch.tensor(3.0)
    assert arrays.describe(x, writable=True) == (x.data_ptr(), 1, 4, "float32", False)
    assert arrays.shape(x) == ()


@pytest.mark.torch
def test_parameters_that_require_grad_are_written_in_place(torch):
    x = torch.nn.Parameter(torch.zeros(3))
    arrays.write_bytes(x, np.float32([1, 2, 3]).tobytes())
    assert x.tolist() == [1, 2, 3]
    assert x.requires_grad
    assert type(arrays.new_like(x, (2,))) is torch.Tensor


@pytest.mark.torch
@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex128", "bool", "int8"])
def test_a_strided_tensor_is_read_and_written_and_nothing_around_it(torch, name):
    base = torch.zeros((4, 6)).to(getattr(torch, name))
    x = base[1::2, ::3].T
    ones = torch.ones((2, 2)).to(base.dtype).contiguous()
    arrays.write_bytes(x, bytes(ones.view(torch.uint8).flatten().tolist()))
    assert torch.equal(x, ones)
    assert int((base != 0).sum()) == 4
    assert arrays.read_bytes(x) == bytes(ones.view(torch.uint8).flatten().tolist())


@pytest.mark.torch
def test_an_expanded_tensor_is_a_source_and_no_target(torch):
    x = torch.ones(1).expand(4)
    assert arrays.read_bytes(x) == np.ones(4, "f4").tobytes()
    with pytest.raises(ValueError, match="share memory"):
        arrays.describe(x, writable=True)


@pytest.mark.torch
def test_a_tensor_of_another_float8_is_opaque(torch):
    x = torch.ones(2, 3).to(torch.float8_e5m2fnuz)
    with pytest.raises(TypeError, match=r"torch\.float8_e5m2fnuz is not one of"):
        arrays.describe(x)
    assert arrays.describe(x.T, True, True)[1:] == (6, 6, "opaque", True)


@pytest.mark.torch
def test_lazily_conjugated_and_negated_tensors_are_refused_because_their_bytes_are_not_their_values(torch):
    c = torch.ones(3, dtype=torch.complex64).conj()
    with pytest.raises(TypeError, match="resolve_conj"):
        arrays.describe(c)
    for negated in (c.imag, c.imag[:1]):
        assert negated.is_neg()
        with pytest.raises(TypeError, match="resolve_neg"):
            arrays.describe(negated)
    assert arrays.describe(c.resolve_conj())[3] == "complex64"
    assert arrays.describe(c.imag.resolve_neg())[3] == "float32"


@pytest.mark.torch
def test_tensors_without_memory_here_are_refused(torch):
    with pytest.raises(TypeError, match="meta"):
        arrays.describe(torch.empty(3, device="meta"))
    with pytest.raises(TypeError, match="does not export its memory"):
        arrays.describe(torch.eye(3).to_sparse())
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(TypeError, match="no memory of its own"):
        arrays.describe(fake)


@pytest.mark.torch
def test_nothing_holds_on_to_a_tensor_after_the_call(torch):
    for x in (torch.ones(6), torch.ones(6)[::2]):
        before = sys.getrefcount(x)
        arrays.write_bytes(x, arrays.read_bytes(x))
        arrays.new_like(x, (2,))
        assert sys.getrefcount(x) == before
    new, other = arrays.new_like(x, (2,)), torch.ones(2)
    assert sys.getrefcount(new) == sys.getrefcount(other)


# ---- jax -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool"])
def test_a_jax_array_is_a_source_and_no_target(name):
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.ones((2, 3), name)
    assert arrays.describe(x)[1:] == (6, x.nbytes, name, False)
    assert arrays.read_bytes(x) == np.asarray(x).tobytes()
    assert arrays.shape(x) == (2, 3)
    assert arrays.new_like(x, (4,)).dtype == x.dtype
    with pytest.raises(TypeError, match="read-only"):
        arrays.describe(x, writable=True)

"""A block: an array in memory that processes hand to each other by reference, and that ends with its last holder."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from shmring.core.arrays.dtype_codec import describe
from shmring.core.arrays.lease import Lease, array_of, end_lease, lease_of
from shmring.core.base.text import size_text
from shmring.core.blocks import holders, in_flight
from shmring.core.blocks import pages as block_pages
from shmring.core.blocks.pages import Pages
from shmring.core.memory.descriptor import passed_on
from shmring.core.memory.mapping import COPY_ON_WRITE, Mapping
from shmring.errors import BlockLostError, ClosedError


class Block:
    """An array in shared memory without a name, which other processes read in place.

    A pickled block is a handle of less than 256 bytes: the process that unpickles it gets the same memory. The memory
    is freed when the last process that holds the block has closed or dropped it, or has ended, however it ended.

    Parameters
    ----------
    data : array_like, torch.Tensor or bytes-like
        What is copied into the block: once, also if it is not contiguous. Bytes are an array of uint8.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    nbytes : int

    Raises
    ------
    TypeError
        The data are Python objects, or of a dtype that has no description.
    OutOfSharedMemoryError
        Less memory is available; ``needed`` and ``available`` say how much. Nothing was made.
    SegmentError
        The process has as many files open as it may, or the kernel has no memory files.

    See Also
    --------
    Block.empty : a block that is filled in place.

    Notes
    -----
    Any thread may call. `array`, arrays and views of it keep the memory after `close`, too. A block that was sent by a
    queue, pipe or channel of shmring, or as an argument of a process, is held by the kernel until it is taken; the
    sender may drop it, or exit. Sent by other means, some process that pickled it must hold it until it is opened.
    """

    def __init__(self, data: Any) -> None:
        array = _array_of(data)
        describe(array.dtype)  # refuses what cannot be described, before anything is made
        contents = array.reshape(-1).view(np.uint8) if array.flags.c_contiguous and array.nbytes else None
        pages = block_pages.make(array.nbytes, contents)
        pages.label(array.dtype, array.shape)
        if contents is None and array.nbytes:
            np.copyto(array_of(pages, pages.mapping, array.dtype, array.shape, False), array)
        self._hold(pages)

    @classmethod
    def empty(cls, shape: int | tuple[int, ...], dtype: Any = float) -> Block:
        """Make a block whose `array` is writable until `seal`; its contents are arbitrary at first.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype_like, default float
            Of plain data, as for ``numpy.empty``.

        Returns
        -------
        Block

        Raises
        ------
        TypeError, ValueError, OutOfSharedMemoryError, SegmentError
            As `Block`, and for shapes that no array has.
        """
        model = np.broadcast_to(np.empty((), dtype), shape)  # NumPy checks both, and nothing is allocated
        describe(model.dtype)
        pages = block_pages.make(model.dtype.itemsize * model.size)
        pages.label(model.dtype, model.shape)
        self = cls.__new__(cls)
        self._hold(pages)
        self._filled = lease_of(pages, pages.mapping, pages.dtype, pages.shape)
        return self

    def _hold(self, pages: Pages) -> None:
        self._pages: Pages | None = pages
        self._filled: Lease | None = None  # its memory, before it is sealed
        self.dtype, self.shape, self.nbytes = pages.dtype, pages.shape, pages.nbytes

    def _held(self, *, sealed: bool = True) -> Pages:
        pages = self._pages
        if pages is None:
            raise ClosedError("this block is closed")
        if sealed and self._filled is not None:
            raise ValueError("this block is being filled: call seal() before it is sent or shared")
        return pages

    def seal(self) -> Block:
        """End the filling of a block made by `empty`: from here on it is read-only, and can be sent.

        Returns
        -------
        Block
            The block itself.

        Raises
        ------
        BufferError
            Arrays or views of it are alive, through which it could be changed: delete them, and call again.
        ClosedError
            It is closed.
        """
        self._held(sealed=False)
        if self._filled is not None:
            end_lease(self._filled)
            self._filled = None
        return self

    # ---- reading ----

    @property
    def array(self) -> np.ndarray:
        """The contents in place, read-only; writable in a block that is being filled. No copy."""
        if self._filled is not None:
            return self._filled.array
        pages = self._held()
        return array_of(pages, pages.mapping, pages.dtype, pages.shape, True)

    def array_copy_on_write(self) -> np.ndarray:
        """The contents as a writable array of this process's own: the kernel copies the pages where it is written.

        Returns
        -------
        numpy.ndarray
            Changes are seen by no other process and in no other array.
        """
        pages = self._held()
        mapping = Mapping(pages.file.fd, pages.mapping.nbytes, 0, COPY_ON_WRITE)
        return array_of(mapping, mapping, pages.dtype, pages.shape, False)

    def tensor(self) -> Any:
        """The contents as a tensor of torch, in place; what is written to it is copied first (`array_copy_on_write`).

        Returns
        -------
        torch.Tensor
            On the CPU.
        """
        import torch

        array = self.array_copy_on_write()
        if array.dtype.isbuiltin == 2:  # of ml_dtypes: torch has types with these names, too
            kind = getattr(torch, array.dtype.name)
            return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(kind).reshape(array.shape)
        return torch.from_numpy(array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)

    def __bytes__(self) -> bytes:
        return self.array.tobytes()

    def __buffer__(self, flags: int) -> memoryview:  # since Python 3.12; before, memoryview(block.array)
        return self.array.data

    def __dlpack__(self, **options: Any) -> Any:
        return self.array_copy_on_write().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # main memory

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a block of a single value has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    # ---- sending ----

    def __reduce__(self) -> tuple:
        pages = self._held()
        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:  # an argument of a process: it inherits it
            return _inherited, (passed_on(pages.file.fd), pages.number, pages.nbytes)
        departure = in_flight.departing()
        place = -1 if departure is None else departure.add(pages)
        return _opened, (holders.handle_of(pages), place)

    # ---- leaving ----

    def close(self) -> None:
        """Let the block go; later calls do nothing. Arrays of it stay valid, and keep its memory until they are gone.

        Raises
        ------
        BufferError
            Arrays of a block that is being filled are alive.
        """
        if self._filled is not None:
            end_lease(self._filled)
            self._filled = None
        self._pages = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pages is None

    def __enter__(self) -> Block:
        self._held(sealed=False)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._pages is None else ", being filled" if self._filled is not None else ""
        return f"<shmring.Block of {self.dtype} {self.shape}, {size_text(self.nbytes)}{state}>"


def _array_of(data: Any) -> np.ndarray:
    """The data as an array, if possible without a copy."""
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.asarray(memoryview(data)) if isinstance(data, memoryview) else np.frombuffer(data, np.uint8)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        data = data.detach().cpu().resolve_conj().resolve_neg()
        if data.dtype is torch.bfloat16 or str(data.dtype).startswith("torch.float8"):
            import ml_dtypes

            kind = np.dtype(getattr(ml_dtypes, str(data.dtype).removeprefix("torch.")))
            flat = data.contiguous().reshape(-1).view(torch.uint8)
            return flat.numpy().view(kind).reshape(tuple(data.shape))
        return data.numpy()
    return np.asarray(data)


def _made(pages: Pages) -> Block:
    block = Block.__new__(Block)
    block._hold(pages)
    return block


def _opened(handle: bytes, place: int) -> Block:
    """The block of a handle, taken from the item with which it came, or from the process that holds it."""
    arrival = in_flight.arriving()
    return _made(holders.taken(handle) if arrival is None or place < 0 else arrival.pages(place, handle))


def _inherited(descriptor: Any, number: int, nbytes: int) -> Block:
    """The block of a descriptor that multiprocessing has passed to a process that it started."""
    pages = block_pages.adopt(block_pages.opened(descriptor.detach), number, nbytes)
    if pages is None:
        raise BlockLostError("a block is lost that was an argument of this process: its file has another one by now")
    return _made(pages)

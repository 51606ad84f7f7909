"""The last error of each thread, and the exceptions of Python as codes."""

from libc.string cimport memcpy, strlen, strncpy

from shmring.capi cimport (SHMRING_ERR_ABORTED, SHMRING_ERR_BAD_ARGUMENT, SHMRING_ERR_CLOSED, SHMRING_ERR_INTERNAL,
                           SHMRING_ERR_MESSAGE_TIMEOUT, SHMRING_ERR_MESSAGE_TOO_LONG, SHMRING_ERR_MISMATCH,
                           SHMRING_ERR_OUT_OF_MEMORY, SHMRING_ERR_PEER_LOST, SHMRING_ERR_TIMEOUT, shmring_error)

from shmring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    MessageTimeoutError,
    MessageTooLongError,
    MismatchError,
    PeerLostError,
    RendezvousTimeoutError,
)


cdef extern from *:
    """
    #define SHMRING_ERROR_NBYTES 1024
    #define SHMRING_NAME_NBYTES 64
    static _Thread_local shmring_error shmring_last = {0, -1, "", ""};
    static _Thread_local char shmring_last_text[SHMRING_ERROR_NBYTES];
    static _Thread_local char shmring_last_name[SHMRING_NAME_NBYTES];
    """
    const size_t SHMRING_ERROR_NBYTES
    const size_t SHMRING_NAME_NBYTES
    shmring_error shmring_last
    char *shmring_last_text
    char *shmring_last_name

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

# In this order: some are derived from others.
cdef tuple CODES = (
    (ClosedError, SHMRING_ERR_CLOSED),
    (PeerLostError, SHMRING_ERR_PEER_LOST),
    ((CollectiveTimeoutError, RendezvousTimeoutError), SHMRING_ERR_TIMEOUT),
    (MismatchError, SHMRING_ERR_MISMATCH),
    ((AbortedError, KeyboardInterrupt), SHMRING_ERR_ABORTED),
    (MessageTimeoutError, SHMRING_ERR_MESSAGE_TIMEOUT),
    (MessageTooLongError, SHMRING_ERR_MESSAGE_TOO_LONG),
    (MemoryError, SHMRING_ERR_OUT_OF_MEMORY),
    ((TypeError, ValueError, RuntimeError), SHMRING_ERR_BAD_ARGUMENT),
)


cdef int fail(int code, const char *name, int rank, const char *text) noexcept nogil:
    """Store the error of this thread, which Python raises as a class of that name; return its code. A text that is too
    long is cut."""
    cdef size_t nbytes = min(strlen(text), SHMRING_ERROR_NBYTES - 1)
    while nbytes == SHMRING_ERROR_NBYTES - 1 and (text[nbytes] & 0xC0) == 0x80:      # in the middle of a character
        nbytes -= 1
        if (text[nbytes] & 0xC0) != 0x80:
            break
    memcpy(shmring_last_text, text, nbytes)
    shmring_last_text[nbytes] = 0
    shmring_last.code = code
    shmring_last.rank = rank
    shmring_last.text = shmring_last_text
    strncpy(shmring_last_name, name, SHMRING_NAME_NBYTES - 1)      # its last byte stays 0
    shmring_last.name = shmring_last_name
    return code


cdef int fail_with(object error) noexcept:
    """Store an exception as the error of this thread; return its code."""
    cdef int code = SHMRING_ERR_INTERNAL, rank = -1
    try:
        for types, number in CODES:
            if isinstance(error, types):
                code = number
                break
        text, name = str(error), type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()      # C code cannot raise it: Python's handler runs again, once this call has returned
        if isinstance(error, MessageTooLongError):
            rank = error.source
        else:
            ranks = getattr(error, "late", None) or getattr(error, "missing", None)
            rank = ranks[0] if ranks else getattr(error, "rank", -1)
        return fail(code, name.encode("utf-8", "replace"), rank, text.encode("utf-8", "replace"))
    except BaseException:
        return fail(code, b"Exception", rank, b"an exception of Python without a text")


cdef int refuse(str text) noexcept:
    return fail_with(ValueError(text))


cdef int refuse_null(const char *what) noexcept nogil:
    """The error that NULL was passed for it."""
    with gil:
        return refuse(f"NULL is no {what.decode()}")


cdef const shmring_error *last_error() noexcept nogil:
    return &shmring_last

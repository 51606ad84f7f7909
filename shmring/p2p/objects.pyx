"""Sends and receives Python objects: one message for the pickle stream, then one for each out-of-band buffer.

All have the same source and tag, so they arrive in order. Their dtype codes are of their own, so that neither is a part
of an object received as an array nor an array taken for an object.
"""

from libc.stdint cimport int64_t

from shmring.p2p.point_to_point cimport PointToPoint
from shmring.p2p.requests cimport Message
from shmring.sync.backoff cimport deadline_of, left_until

from shmring.errors import MessageError, MessageTimeoutError, ObjectError
from shmring.objects.codec import buffer_sizes, dump, load, require_pickle


cdef int send_object(PointToPoint messages, obj, int dst, int tag, int64_t timeout_ns) except -1:
    require_pickle(messages.engine.config.allow_pickle)
    dumped = dump(obj, messages.rank)
    return messages.send_object([dumped.header, *dumped.buffers], dst, tag, timeout_ns)


cdef object recv_object(PointToPoint messages, int src, int tag, int64_t timeout_ns):
    require_pickle(messages.engine.config.allow_pickle)
    source, header, buffers = recv_parts(messages, src, tag, timeout_ns)
    return load(header, buffers, source)


cdef tuple recv_parts(PointToPoint messages, int src, int tag, int64_t timeout_ns):
    """The source of the next object, its pickle stream and its out-of-band buffers.

    Parts of an object that is not complete in time are kept for the next call.
    """
    cdef int64_t deadline_ns = deadline_of(timeout_ns)
    cdef Message message
    cdef list parts
    while True:
        message = messages.probe(src, tag, left_until(deadline_ns, timeout_ns))
        if message is None:
            raise MessageTimeoutError(f"{messages.engine.name}: no complete object arrived in time; nothing is lost")
        if not message.is_object:
            raise MessageError(f"the next message from rank {message.source} with tag {message.tag} is an array of "
                               f"{message.dtype or 'opaque bytes'}, not an object: receive it with recv()")
        src, tag = message.source, message.tag      # the other parts have the same
        parts = messages.begun_objects.setdefault((src, tag), [])
        messages.recv_part(parts, message, left_until(deadline_ns, timeout_ns))
        try:
            nparts = 1 + len(buffer_sizes(parts[0], src))
        except ObjectError as error:
            messages.engine.abort(str(error))
            raise
        if len(parts) == nparts:
            del messages.begun_objects[src, tag]
            return src, parts[0], parts[1:]

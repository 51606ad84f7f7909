# Waits in compiled code call this at times: in the main thread it runs signal handlers and raises errors of
# `raise_later`.
cdef extern from "Python.h":
    int check_signals "Py_MakePendingCalls"() except -1

# What a wait in compiled code calls now and then: in the main thread, handlers of signals, and what `raise_later` left.
cdef extern from "Python.h":
    int check_signals "Py_MakePendingCalls"() except -1

# Codes in the headers of channel segments (channels/format.pyx).

cdef enum:                         # sending into a full channel
    WAITS = 0
    DROPS_NEWEST = 1
    DROPS_OLDEST = 2

cdef enum:                         # a receiver of a broadcast that leaves no room
    SLOW_WAITS = 0
    SLOW_DROPS_OLDEST = 1
    SLOW_DISCONNECTS = 2

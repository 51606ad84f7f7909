# Codes in the headers of channel segments (channels/format.pyx).

cdef enum:                         # what a sender does when a receiver leaves no room
    WAITS = 0
    DROPS_NEWEST = 1               # this one and the next: the channel drops
    DROPS_OLDEST = 2               # this one and the next: the receiver claims what it reads (ring/overwrite.pyx)
    DISCONNECTS = 3

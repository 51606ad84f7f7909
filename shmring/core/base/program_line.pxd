# The line of the user's program that made a call (core/base/program_line.pyx).

# ``file:line in function`` of the innermost frame outside the packages that pass calls on; the end of it, at most
# ``most`` bytes. Makes Python objects, so signal handlers may run, and raise.
cdef bytes program_line(int most)

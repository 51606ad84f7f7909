"""Arrays in shared memory that all ranks of a communicator reach.

An array lies in a segment that every rank has mapped: made there (`shared_arrays`), or moved there with its pages, at
its address (`share`, `moved`). The *registry* of the communicator finds by an address the *place*: number of the
allocation, rank, offset, which all ranks understand. A large collective begins with an eager exchange of the places of
its buffers (`zero_copy`). From that table all ranks choose alike: *staged*, through the outboxes, unless all that the
plan reads or stores of others has a place; *direct*, on the arrays, else; and if measurements say so, staged again
(`collectives/engine/variants`). A direct call pins the allocations until it ends. Pages move only while no call of the
process may store there and no thread forks, and ranges are claimed before (`moved`), so an array is private or shared
for the whole of a call. Ranks that are threads of one process read private arrays where they lie, too, which are kept
alive.
"""

"""The schedules of the collectives, as data: pure functions of rank, size, bytes and limits.

===============  =======================================================================================
`steps`          the steps of a plan: Copy, Reduce, Claim, Publish, Await, Release, and loops of them
`limits`         what a plan has to fit into, and the parameters of the cost model
`pipeline`       how bytes are cut into rounds, and how rounds overlap
`reduction`      all_reduce, reduce, reduce_scatter, scan, exscan on private buffers
`two_shot`       reduce-scatter plus all-gather, under all_reduce and reduce
`data_movement`  broadcast, all_gather, gather, scatter, all_to_all on private buffers
`zero_copy`      the same collectives on shared arrays, without staging
`thread_shares`  a collective split among the threads of each rank
`hierarchy`      the locality domains of the ranks: caches, NUMA nodes or packages
`hops`           pipelines in which a piece goes from rank to rank, one hop a round
`hierarchical`   collectives that send few bytes between domains
`choose`         the choice of the algorithm, by the cost model
`cost`           the cost of a plan: bytes touched, staged, and moved between domains; synchronisations
===============  =======================================================================================

``docs/maintainers/algorithms.md`` explains the plans; ``tools/plan_costs.py`` prints them and their costs.
"""

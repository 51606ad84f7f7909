"""What `torch.distributed` promises (support/torch_checks), among ranks of one node and of several."""

import pytest
from support.torch_checks import collectives, groups, messages, work
from support.torch_checks.driver import run_torch_cases
from support.torch_groups import run_group

# By rank: those with the same letter are on the same node.
IN_ROWS = ("aabb", "aaab", "abcc")
LAYOUTS = (*IN_ROWS, "abab")
# For each check, how many ranks of one node make it, and by which ranks of several nodes it is made: those of shmring's
# own messages by none, as there they are gloo's.
CHECKS = {
    collectives.odd_tensors: ((1, 2, 3), IN_ROWS),
    collectives.integer_averages: ((1, 2, 3), IN_ROWS),
    collectives.all_reduce_ops: ((1, 2, 3), IN_ROWS),
    collectives.coalesced: ((1, 2, 3), IN_ROWS),
    collectives.sparse: ((1, 2, 3), IN_ROWS),
    collectives.sparse_results: ((1, 2), ("ab",)),
    collectives.refused: ((1, 2), ("ab",)),
    collectives.another_default_device: ((2,), ("ab",)),
    collectives.objects: ((1, 2, 3), IN_ROWS),
    collectives.modes: ((2,), ("ab",)),
    collectives.disagreed: ((2,), ()),
    messages.all_types: ((2,), ("ab",)),
    messages.strided: ((2,), ()),
    messages.any_source: ((4,), IN_ROWS),
    messages.both_ways: ((1, 2, 3), IN_ROWS),
    messages.without_a_waiter: ((2,), ("ab",)),
    messages.futures: ((2,), ()),
    messages.in_vain: ((2,), ()),
    messages.misfits: ((2,), ()),
    messages.late: ((2,), ()),
    groups.again: ((2,), ("ab",)),
    groups.subgroups: ((4,), LAYOUTS),
    groups.meshes: ((4,), LAYOUTS),
    groups.late: ((2,), ("ab",)),
    groups.late_to_a_new_group: ((2,), ("ab",)),
    groups.set_later: ((2,), ("ab",)),
    groups.monitored: ((4,), ()),
    groups.monitored_by_gloo: ((), LAYOUTS),
    work.in_background: ((1, 2, 3), IN_ROWS),
    work.futures: ((1, 2), IN_ROWS),
    work.callbacks_communicate: ((1, 2, 3), ("ab",)),
}


@pytest.mark.parametrize(
    ("check", "nodes"),
    [(check, nodes) for check, (sizes, layouts) in CHECKS.items() for nodes in (*("a" * n for n in sizes), *layouts)],
    ids=lambda value: value if isinstance(value, str) else f"{value.__module__.rpartition('.')[2]}.{value.__name__}",
)
def test_what_holds_on_one_node_holds_on_several(check, nodes):
    run_group(len(nodes), check, labels=nodes if len(set(nodes)) > 1 else None)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_case_is_right_in_every_form(n, seed):
    run_group(n, run_torch_cases, 120, seed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_case_is_right_in_every_form_on_several_nodes(layout, seed):
    run_group(len(layout), run_torch_cases, 80, seed, labels=layout)

"""Messages of torch.distributed: every type, long and short, in any order of calls, from any rank, without waiting."""

import pytest
from support.torch_checks.messages import (
    all_types,
    any_source,
    both_ways,
    futures,
    in_vain,
    late,
    misfits,
    without_a_waiter,
)
from support.torch_groups import run_group


def test_tensors_of_every_type_arrive():
    run_group(2, all_types)


def test_receiving_from_any_rank_returns_the_source():
    run_group(4, any_source)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_batches_of_messages_both_ways(n):
    run_group(n, both_ways)


def test_messages_move_while_no_rank_waits_for_them():
    run_group(2, without_a_waiter)


def test_the_future_of_a_message_gets_its_tensor():
    run_group(2, futures)


def test_a_group_ends_with_all_sent_though_something_is_awaited_in_vain():
    run_group(2, in_vain)


def test_a_message_of_another_size_or_type_is_an_error():
    run_group(2, misfits)


def test_a_receive_times_out_and_goes_on():
    run_group(2, late)

"""Which node the environment gives to a rank."""

import pytest

from shmring.nodes.discovery import FORCED, FORCED_COUNT, forced_node


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch):
    monkeypatch.delenv(FORCED, raising=False)
    monkeypatch.delenv(FORCED_COUNT, raising=False)


def test_without_a_variable_no_node_is_forced():
    assert forced_node(3, 4) == ""


@pytest.mark.parametrize(("size", "count", "nodes"), [(4, 2, "0011"), (5, 2, "00011"), (3, 3, "012"), (4, 1, "0000")])
def test_a_number_of_nodes_divides_the_ranks_in_order(monkeypatch, size, count, nodes):
    monkeypatch.setenv(FORCED_COUNT, str(count))
    assert "".join(forced_node(rank, size) for rank in range(size)) == nodes


def test_a_node_of_its_own_counts_more(monkeypatch):
    monkeypatch.setenv(FORCED_COUNT, "2")
    monkeypatch.setenv(FORCED, "here")
    assert forced_node(3, 4) == "here"


@pytest.mark.parametrize("text", ["0", "5", "two", "-1", "1.5"])
def test_an_impossible_number_of_nodes_is_refused_by_its_variable(monkeypatch, text):
    monkeypatch.setenv(FORCED_COUNT, text)
    with pytest.raises(ValueError, match=f"SHMRING_NODES='{text}': must be .* from 1 to 4"):
        forced_node(0, 4)

"""What is printed of plans: the command, and the tables in the documentation."""

from pathlib import Path

import pytest
from plan_tables import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "maintainers" / "algorithms.md"


def test_the_documented_tables_are_those_that_the_command_counts_from_the_plans(capsys):
    main(["costs"])
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 3
    page = PAGE.read_text()
    for table in tables:
        assert table in page


def test_the_command_shows_a_plan_and_its_cost(capsys):
    main(["show", "all_reduce", "--size", "3", "--rank", "1", "--nbytes", "2M"])
    out = capsys.readouterr().out
    assert out.startswith("all_reduce, two_shot: rank 1 of 3,")
    assert "await" in out
    assert "bytes, " in out.splitlines()[-1]


def test_the_command_refuses_ranks_there_are_not():
    with pytest.raises(SystemExit):
        main(["show", "reduce", "--size", "2", "--root", "2"])

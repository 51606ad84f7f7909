"""What the tests of plans share: the simulator, the reference results, planners and call shapes."""

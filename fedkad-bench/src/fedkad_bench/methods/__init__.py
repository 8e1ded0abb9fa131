"""The methods of the benchmark: each is fitted on a federation and scores one client at a time."""

"""One device: from its samples to its alerts, in the order of `pipeline`."""

"""FedKAD."""

"""The benchmark of FedKAD on real data: datasets, methods, metrics, protocols, studies and their report."""

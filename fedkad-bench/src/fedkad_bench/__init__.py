"""Benchmarks on real data: datasets, protocols and studies."""

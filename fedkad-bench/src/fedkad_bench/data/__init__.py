"""Datasets: layouts, partitions, differences from the paper, a cache, downloads, and how unlike clients are."""

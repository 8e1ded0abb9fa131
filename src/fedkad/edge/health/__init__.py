"""Faults of sensors: what is silent, stuck, impossible or at another interval than it should be."""

"""Contracts: the same checks run over every sink, source, method and carrier."""

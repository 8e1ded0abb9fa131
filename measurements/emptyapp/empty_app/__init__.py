"""Rounds in which nothing is computed."""

"""The error for files of a fleet."""

from __future__ import annotations


class FleetFileError(ValueError):
    """A file of the fleet that cannot be used; the message says which, why and what to do."""

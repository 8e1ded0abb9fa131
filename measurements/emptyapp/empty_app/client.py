"""Devices answer with their own app, which refuses an empty message at once."""

from fedkad.fleet.clientapp import app

__all__ = ["app"]

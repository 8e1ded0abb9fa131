"""The device's end."""

from fedkad.fleet.clientapp import app

__all__ = ["app"]

"""The server's end."""

from fedkad.fleet.serverapp import app

__all__ = ["app"]

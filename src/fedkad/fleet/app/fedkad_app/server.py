"""The server's end."""

from fedkad.fleet.server.serverapp import app

__all__ = ["app"]

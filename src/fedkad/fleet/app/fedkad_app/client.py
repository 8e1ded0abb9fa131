"""The device's end."""

try:
    from fedkad.fleet.device.clientapp import app
except ModuleNotFoundError:  # a device of 0.1 runs the app that its server sends, with the modules of its own release
    from fedkad.fleet.clientapp import app  # type: ignore[import-not-found,no-redef]

__all__ = ["app"]

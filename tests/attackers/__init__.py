"""Devices that violate the protocol, and what the tests with real processes share."""

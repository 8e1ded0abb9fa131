"""The fleet over a network: the Flower app, secure aggregation, and the operation of servers and devices.

Only this folder imports `flwr` and `cryptography`, and within it only `flower` relies on more than Flower's public API.
What is computed, and what a message means, is in `federation`.
"""

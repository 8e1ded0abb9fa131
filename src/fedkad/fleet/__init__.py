"""The fleet over a network: the Flower app, secure aggregation, and the operation of servers and devices.

Only this folder imports `flwr` and `cryptography`. What is computed, and what a message says, is in `federation`.
"""

"""The fleet over a network: `server` and `device` are its two sides, `shared` is what both need.

`flower` is the one door to Flower: only this folder imports `flwr` and `cryptography`, and within it only `flower`
relies on more than Flower's public API. `app` is what Flower runs. What is computed, and what a message means, is in
`federation`.
"""

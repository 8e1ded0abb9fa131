"""The consensus of a fleet: what a client does, what the server does, and what goes over the wire.

`client` and `server` hold the steps of the algorithm and know nothing of transport. `inprocess` drives them inside one
process; any other engine drives the same steps.
"""

"""The consensus of a fleet: what a participant does, what the server does, and what goes over the wire.

The steps of the algorithm know nothing of messages:

    client       the warm message, the local round, the dual update
    server       sampling, and the consensus of the replies
    robust       a geometric median in place of the mean, and who pulls alone in a warm round
    gate         whether a result is good enough to be delivered
    privacy      clipping, noise, and what they guarantee
    secure       a sum that hides its terms

A training is made of messages, whatever carries them:

    protocol        requests and replies; `wire` has their matrices as bytes
    participant     from what a device knows and a request to what it knows then and a reply
    coordinator     the server's side of a round: which devices to ask, what to accept, when to close
    open_requests   the answers that the server waits for
    delivery        the end of a training: devices judge the result, and get it, some from a file
    engine          the loop of rounds over a carrier

What outlives the server is a `training_state`; `training_files` and `model_archive` keep it on disk.
Two carriers exist: `local`, on which `inprocess.federate` runs, and `fedkad.fleet.server.carrier` over Flower, whose
devices keep what they know in folders (`durable`).
"""

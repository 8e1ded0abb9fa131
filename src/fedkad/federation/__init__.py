"""The consensus of a fleet: what a participant does, what the server does, and what goes over the wire.

The steps of the algorithm know nothing of messages:

    client       the warm message, the local round, the dual update
    server       sampling, and the consensus of the replies
    robust       a geometric median in place of the mean, and who pulls alone in a warm round
    judging      whether a result is good enough to be delivered
    shelf        the models that a server keeps
    privacy      clipping, noise, and what they guarantee
    secure       a sum that hides its terms

A training is made of messages, whatever carries them:

    protocol     requests and replies; `wire` has their matrices as bytes
    participant  from what a device knows and a request to what it knows then and a reply
    coordinator  the server's side: which devices to ask, what to accept, when to close a round
    engine       the loop of rounds over a carrier
    deliveryfile the result as a file, for devices that are not connected

Two carriers exist: `memory`, on which `inprocess.federate` runs, and `fedkad.fleet.server.carrier` over Flower, whose
devices keep what they know in folders (`durable`).
"""

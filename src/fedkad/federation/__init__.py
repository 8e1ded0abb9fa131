"""The consensus of a fleet: what a participant does, what the server does, and what goes over the wire.

The steps of the algorithm know nothing of messages:

    client       the warm message, the local round, the dual update
    server       sampling, and the consensus of the replies
    robust       a geometric median in place of the mean, and who pulls alone in a warm round
    gate         whether a result is good enough to be delivered
    privacy      clipping, noise, and what they guarantee
    secure       a sum that hides its terms

A training is made of messages, whatever carries them:

    protocol     requests and replies; `wire` has their matrices as bytes
    participant  from what a device knows and a request to what it knows then and a reply
    coordinator  the server's side: which devices to ask, what to accept, when to close a round
    training_folder, model_archive  the files of the server
    engine       the loop of rounds over a carrier
    deliveryfile the result as a file, for devices that are not connected

Two carriers exist: `local`, on which `inprocess.federate` runs, and `fedkad.fleet.server.carrier` over Flower, whose
devices keep what they know in folders (`durable`).
"""

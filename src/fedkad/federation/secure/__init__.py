"""The sum of the devices' matrices without any single matrix: secure aggregation with double masks.

The protocol is that of Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
in its version against an honest but curious server, with a mask between every pair of devices. (Flower's SecAgg+ takes
its masks from a 32-bit seed, which can be searched.) Device i rounds its matrix to integers x_i and sends, modulo 2³²,

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij),

where s_ij is agreed between i and j, and b_i is its own. In the sum over all devices the pairwise masks cancel. To
remove the rest, every device has shared b_i and its mask key among all the others, so that `threshold` of them can
restore either: b_i of a device whose y_i arrived (a survivor), the mask key of one that vanished before. Never both:
with both, y_i would be open.

    arithmetic  matrices as integers modulo 2³², and secrets split into shares
    session     what a round agrees on, and the keys, masks and boxes derived from it
    device      the steps of a device: `advertise`, `share`, `mask`, `reveal`
    server      the steps of the server: `MaskedSum`, and `gather`, which asks for them in a training

No step moves a message: each takes what arrived and returns what to send.

>>> import numpy as np
>>> from fedkad.federation.secure.device import advertise, mask, reveal, share
>>> from fedkad.federation.secure.server import MaskedSum
>>> from fedkad.federation.secure.session import MaskingContext, default_threshold
>>> context = MaskingContext(run="example", round=1, threshold=default_threshold(4), bound=1.0, levels=1000)
>>> matrices = {device: np.full((1, 2), 0.1 * device) for device in (1, 2, 3, 4)}
>>> server, secrets = MaskedSum(context, shape=(1, 2)), {}
>>> for device in matrices:
...     message, secrets[device] = advertise(context, device)
...     server.take_keys(device, message)
>>> roster = server.roster()
>>> for device in matrices:
...     message, secrets[device] = share(secrets[device], roster)
...     server.take_shares(device, message)
>>> boxes = server.forward()
>>> for device in (1, 2, 3):  # 4 vanishes
...     masked, secrets[device] = mask(secrets[device], boxes[device], matrices[device])
...     server.take_masked(device, masked.integers.tobytes())
>>> verdict = server.close()
>>> verdict
{'survivors': [1, 2, 3], 'dropped': [4]}
>>> for device in (1, 2, 3):
...     message, secrets[device] = reveal(secrets[device], verdict)
...     server.take_revealed(device, message)
>>> server.unmask().round(3)
array([[0.6, 0.6]])

What this protects: one device's matrix, from a server that follows the protocol and keeps all it sees, together with
fewer than `threshold` devices that tell it all they know. They learn the sum over the survivors, and what follows from
it: with every matrix but one at hand, the sum gives away the last.

What this does not protect:

- Public keys come through the server, and nothing here checks whose they are. A server that actively lies about keys
  can play the peers of a device itself and open its matrix. Against that, keys must be signed by something that the
  server does not hold.
- A server that names one device a survivor to some and dropped to others gets both secrets only if `threshold` devices
  answer each way. As 2·threshold > n, honest devices alone are too few for that; with c colluding devices,
  2·threshold > n + c would be needed. There is no further round in which devices compare what they were told.
- Nothing stops a device from sending a poisoned matrix: the server sees no norm and no direction of any single one.
- Nothing stops a device from ending a round. An invalid answer is refused, and the others continue; but unusable
  shares, in boxes that do not open or with a wrong number inside, are noticed too late to repair the sum.
- What the sum itself says about a device is not blurred; that takes noise, not masks.

Only this package imports `cryptography`, and only a training with secure aggregation imports this package.
"""

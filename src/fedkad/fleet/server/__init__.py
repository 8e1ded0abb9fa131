"""What runs on the server: the supervised processes, trainings, the notice board, enrolment, and the server's app.

- `operation`: `fedkad server`, the loop that keeps everything running; `guards` end what hangs
- `trainings`: when the app runs; `outcome`: how a training ended
- `serverapp`: the app of one run, which holds rounds over `carrier`
- `enrolment`, `registry`: the devices of the fleet, and what an operator does to them
- `noticeboard`: what all devices read; `lastseen`: when they did
- `overview`, `reporting`, `webhook`: what an operator sees
- `settings`: `fleet.toml`, and the layout of the server's folder; `limits`: how large a reply may be
"""

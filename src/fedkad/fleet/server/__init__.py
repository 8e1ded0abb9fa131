"""What runs on the server: the supervised processes, trainings, the notice board, enrolment, and the server's app.

- `operation`: `fedkad server`, which runs `supervisor`, `proxysupervisor` and the `guards` of what hangs
- `trainings`: when the app runs; `requests`: what asks for a training, and how it ended; `rollcall`: whom it calls
- `serverapp`: the app of one run, which holds rounds over `carrier`
- `enrolment`, `registry`: the devices of the fleet, and what an operator does to them
- `noticeboard`: what all devices poll; `lastseen`: when they did
- `overview`, `reporting`, `webhook`: what an operator sees
- `settings`: `fleet.toml`, and the layout of the server's folder
"""

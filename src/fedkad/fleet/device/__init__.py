"""What runs on a device: the connection to the server, the client of the notice, and the device's app.

- `connection`: `fedkad client` while the device is called; `idleclient`: while it is not, without Flower and numpy
- `noticeclient`: reads the notice over `httpsclient`; `adoption`: puts a model in use that was fetched
- `joining`: `fedkad fleet join`
- `clientapp`: the app that answers the server's requests with the statistics of `data`
- `settings`: `device.toml`
"""

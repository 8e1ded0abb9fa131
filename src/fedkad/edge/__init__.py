"""The agent on a device: from live samples to alarms that say why, for months, through power cuts.

The path of a sample, and the modules in its order:

    sources/    a line or an MQTT message arrives                             RawMessage
      decoding  which device and channels it has, and its time                Sample
    watcher     one device; the next four are its parts
    grid        the slot of the device's fixed grid that it belongs to        GridRow
    model       scored by the model of the device                             Reading (of fedkad.detect)
    alarms      hysteresis, duration, cool-down, rate                         Alert
      alert, alerttext
    learning    kept, and learned from if it is normal
    store       all of it committed in one transaction, then acknowledged
    sinks/      MQTT, Home Assistant, webhook, JSON lines; Prometheus reads `status`
      outbox    each alert is offered to every sink until it is delivered

`commands/` has the way of a command: left in the store by another process or delivered by a broker, and answered by
the device. `subcommands/` has what ``fedkad-agent`` does beside running: list incidents, replay a recording, discover
what publishes.

`agent` is the loop around all of them, `assembly` makes its source and sinks, `main` is the command, `checking` its
--check. `settingsfile` reads the configuration into the values of `settings`; `process` has the log and forks.
Nothing here computes scores: they come from `fedkad.detect`.
"""

"""The agent on a device: from live samples to alarms that say why, for months, through power cuts.

The path of a sample, and the modules in its order:

    sources/    a line or an MQTT message arrives                             RawMessage
    decoding    which device and channels it has, and its time                Sample
      readers, payload
    watcher     one device; the next four are its parts
    grid        the slot of the device's fixed grid that it belongs to        GridRow
    model       scored by the model of the device                             Reading (of fedkad.detect)
    alarms      hysteresis, duration, cool-down, rate                         Alert
      alarmstate, alerttext
    learning    kept, and learned from if it is normal
    store       all of it committed in one transaction, then acknowledged
    outbox      offered to every sink until it is delivered
    sinks/      MQTT, Home Assistant, webhook, JSON lines; Prometheus reads `status`
      services  what a webhook posts to ntfy, Slack and Telegram

The path of what an operator tells, which `commands` has as a value:

    telling     the command line leaves it in the store, as `visiting`, or a broker delivers it
    inbox       handed out until it is answered
    obeying     carried out by the watcher, and its reply committed with what it changed
      orders    what holds until it is told otherwise

`history` and `replaying` answer questions beside the agent, and `discovering` finds out by a `survey` what to watch.
`agent` is the loop around all of them, `assembly` makes its source and sinks, `main` is the command, `checking` its
--check. `settingsfile` reads the configuration into the values of `settings`; `process` has the log, systemd and
forks. Nothing here computes scores: they come from `fedkad.detect`.
"""

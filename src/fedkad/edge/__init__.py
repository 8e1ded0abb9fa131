"""The agent on a device: from live samples to alarms that say why, for months, through power cuts.

The way of a sample, and the modules in its order:

    sources/   a line, a row or an MQTT message arrives                     bytes
    payload    what shape it has, which channels it carries, its time       Sample
    grid       the slot of the device's fixed grid that it belongs to       Row
    watcher    scored by the device's stream; learnt from when normal       reading
    alarms     hysteresis, duration, cool-down, rate                        Alert
    store      all of it committed in one transaction, then acknowledged
    sinks/     MQTT, Home Assistant, webhook, Prometheus, JSON lines

`agent` is the loop around them, `settings` the file that it is told by. Nothing here computes: numbers come from
`fedkad.detect`.
"""

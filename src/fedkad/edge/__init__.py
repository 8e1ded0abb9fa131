"""The agent on a device: from live samples to alarms that say why, for months, through power cuts.

The path of a sample, and the modules in its order:

    sources/          a line or an MQTT message arrives                       RawMessage
      decoding        which device and channels it has, and its time          Sample
    device/pipeline   one device, from a sample to its alerts, by the parts of `device/parts`
      grid            the slot of the device's fixed grid that it belongs to  GridRow
        rhythm        how long each channel is silent when all is well
      period          how the distance of the slots is found
      health/         what sensors say that cannot be: faults, and detectors  FaultAlert
      learning        kept; what is learned from, and when (far values: `modelfolder`)
      model           scored by the model of the device                       Reading (of fedkad.detect)
        modelfolder   the files of that model
      alarms/         an incident is a state machine                          IncidentAlert
      state           what the device continues from after a restart
      status          what is shown of it
      overrides       what an operator has changed: its budget, mute
    alert             alerts as values, and their JSON; `alerttext` has their text
    store/            all of it committed in one transaction, then acknowledged
    sinks/            MQTT, Home Assistant, webhook, JSON lines; Prometheus reads `status`
      outbox          each alert is offered to every sink until it is delivered

`commands/` has the way of a command: left in the store by another process or delivered by a broker, and answered by
the device. `subcommands/` has what ``fedkad-agent`` does beside running: list incidents, replay a recording, discover
what publishes.

`agent` is the loop around all of them, `assembly` makes its source and sinks, `main` is the command. `settings/`
reads and checks the configuration, `reloading` takes it again; `connection` is one to a broker; `membership` takes part
in a fleet; `process` has the log and forks. Nothing here computes scores: they come from `fedkad.detect`.
"""

"""Reading whatever a plant, a historian or a spreadsheet exports, on the command line.

DuckDB does the heavy work. Only this layer imports it, and neither the agent nor a fleet's device imports this layer.
What cannot be known is asked for in a sentence that names the switch; what was skipped, converted or taken as missing
is counted in the notes of the table.
"""

from fedkad.intake.celltable import read_cells
from fedkad.intake.devicesfile import device_names, read_devices
from fedkad.intake.reading import read_recording
from fedkad.intake.switches import Switches

__all__ = ["Switches", "device_names", "read_cells", "read_devices", "read_recording"]

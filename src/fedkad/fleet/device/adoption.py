"""Puts a fetched model in use. It runs in a process of its own, so that the device gets the memory back afterwards.

    python -m fedkad.fleet.device.adoption FOLDER DEVICE DATA FILE

DATA, the device's table, may be empty. An error is one sentence on stderr.
"""

import sys
from pathlib import Path

from fedkad.federation.delivery import read_delivery
from fedkad.fleet.device.data import participant_in


def adopt(folder: Path, device: str, data: Path | None, file: Path) -> None:
    """Do with a delivery in a file what a device does with one that its server sends."""
    participant_in(folder, device, data).answer(read_delivery(file))


def main() -> None:
    """Adopt what the command line names."""
    folder, device, data, file = sys.argv[1:]
    try:
        adopt(Path(folder), device, Path(data) if data else None, Path(file))
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""``fedkad admit``: a new device joins a trained fleet."""

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.failures import few_rows_noted, naming
from fedkad.cli.options import with_reading_options
from fedkad.cli.output import AsJson, print_facts, print_json
from fedkad.cli.recordings import check_period, load_device, named_series, report_reading, usual_period
from fedkad.cli.targets import require_model_or_none, require_place
from fedkad.federation.federation_file import model_file, require_file_names
from fedkad.federation.inprocess import Federation
from fedkad.intake import Switches
from fedkad.wording import counted, significant


@with_reading_options("channels")
def admit(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="The folder that `fedkad federate` wrote.")],
    data: Annotated[Path, typer.Argument(metavar="NEW", help="A table, or a folder of tables, of the new device.")],
    reading: Switches,
    name: Annotated[
        str | None, typer.Option(help="Name of the device.", show_default="that of the file or folder")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Admit a new device to a fleet: the shared subspace, and an operator and threshold from its own few samples."""
    federation = Federation.load(fleet, statistics=False)
    require_place(fleet)
    setup = next(iter(federation.detectors.values())).model_.setup
    device = load_device(data, reading, wanted=setup.names)
    period = usual_period([device])
    report_reading([device], period, fixed=True)
    name = name or device.name
    require_file_names([name])
    require_model_or_none(model_file(fleet, name))
    check_period(setup.settings.sample_period, device, data)
    with naming(data), few_rows_noted(data):
        detector = federation.admit(name, named_series(device))
    detector.save(model_file(fleet, name))
    federation.save_shared(fleet)
    model, rows = model_file(fleet, name), sum(len(table.values) for table in device.tables)
    if as_json:
        print_json({"device": name, "model": str(model), "rows": rows, "threshold": detector.threshold_})
        return
    print_facts(
        {
            "model": str(model),
            "data": f"{counted(rows, 'row')} of {counted(len(device.channels), 'channel')}",
            "threshold": significant(detector.threshold_),
            "false alarms": detector.model_.expectation,
        }
    )

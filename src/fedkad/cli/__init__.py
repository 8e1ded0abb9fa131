"""The command line: parse, call, print. Progress goes to stderr, results go to stdout.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 anomalies found (with ``--fail-on-anomaly``).
"""


def main() -> None:
    """Run the ``fedkad`` command."""
    from fedkad.cli.app import app  # not at the top, so that importing fedkad.cli needs no typer

    app(prog_name="fedkad")

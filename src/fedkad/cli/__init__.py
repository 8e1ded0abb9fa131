"""The command line: parse, call, print. Progress goes to stderr, results go to stdout.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 anomalies found (with ``--fail-on-anomaly``), 130 interrupted.
"""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the ``fedkad`` command."""
    try:
        from fedkad.cli.app import app  # not at the top, so that importing fedkad.cli needs no typer

        app(prog_name="fedkad")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)

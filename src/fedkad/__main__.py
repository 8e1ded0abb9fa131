"""``python -m fedkad``: the command line where the ``fedkad`` script is not on the path."""

from fedkad.cli import main

if __name__ == "__main__":
    main()

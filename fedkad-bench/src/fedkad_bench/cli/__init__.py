"""The commands that the benchmark adds to ``fedkad``: ``bench`` and ``datasets``, found by their entry points."""

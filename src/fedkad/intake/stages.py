"""Progress over several steps, of which nobody knows beforehand how many there will be."""

from fedkad.progress import Report

WHOLE = 1000


class Stages:
    """Tells one listener of steps that follow one another: each takes half of what is left, and the last one the rest.

    >>> told = []
    >>> stages = Stages(lambda done, of: told.append(done))
    >>> unpack = stages.begin()
    >>> unpack(50, 100), unpack(100, 100), stages.last()(100, 100)
    (None, None, None)
    >>> told
    [250, 500, 1000]
    """

    def __init__(self, report: Report) -> None:
        self._report, self._begun = report, 0.0

    def begin(self) -> Report:
        """A step after which others follow."""
        return self._step((1.0 - self._begun) / 2.0)

    def last(self) -> Report:
        """The last step."""
        return self._step(1.0 - self._begun)

    def _step(self, share: float) -> Report:
        before = self._begun
        self._begun += share
        return lambda done, of: self._report(round(WHOLE * (before + share * min(done / max(of, 1), 1.0))), WHOLE)

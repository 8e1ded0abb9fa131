"""Progress over several steps, the number of which is not known beforehand."""

from fedkad.progress import Report

WHOLE = 1000


class Stages:
    """Tells one listener of steps that follow one another: each takes half of what is left, and the last one the rest.

    >>> heard = []
    >>> stages = Stages(lambda done, of: heard.append(done))
    >>> unpack = stages.begin()
    >>> unpack(50, 100), unpack(100, 100), stages.last()(100, 100)
    (None, None, None)
    >>> heard
    [250, 500, 1000]
    """

    def __init__(self, report: Report) -> None:
        self._report, self._begun = report, 0.0

    def begin(self) -> Report:
        """Begin a step after which others follow."""
        return self._step((1.0 - self._begun) / 2.0)

    def last(self) -> Report:
        """Begin the last step."""
        return self._step(1.0 - self._begun)

    def _step(self, share: float) -> Report:
        before = self._begun
        self._begun += share
        return lambda done, of: self._report(round(WHOLE * (before + share * min(done / max(of, 1), 1.0))), WHOLE)

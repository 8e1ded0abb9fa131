"""What a device was told until it is told otherwise: another budget, and to be mute for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedkad.edge.alert import Reason
from fedkad.edge.settings import DeviceSettings, Maintenance


@dataclass(frozen=True)
class Overrides:
    """The orders of an operator that hold now; those of a device that was told nothing are empty.

    >>> orders = Overrides().muted(100.0, 60.0)
    >>> orders.is_muted(120.0), orders.is_muted(170.0), orders.muted(130.0, 0.0).is_muted(140.0)
    (True, False, False)
    """

    budget: str = ""  # false alarms allowed, instead of those in the configuration
    muted_since: float = 0.0  # seconds since 1970
    muted_until: float = 0.0

    def muted(self, since: float, seconds: float) -> Overrides:
        """The same with another time to be mute; 0 seconds for none."""
        until = since + seconds if seconds else 0.0
        return replace(self, muted_since=since if seconds else 0.0, muted_until=until)

    def is_muted(self, *moments: float) -> bool:
        """Whether any of these moments is in the time to be mute.

        A row has two: its own time, which the device's clock may have wrong, and its arrival, which may be late.
        """
        return self.muted_until > 0.0 and any(self.muted_since <= moment < self.muted_until for moment in moments)

    def applied(self, settings: DeviceSettings) -> DeviceSettings:
        """The settings of the device as they hold under these orders."""
        if not self.budget:
            return settings
        return replace(settings, alarm=replace(settings.alarm, budget=self.budget, threshold=""))

    def state(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self).copy()

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Overrides:
        """The inverse of `state`; what is missing was not told."""
        return cls(
            str(state.get("budget", "")), float(state.get("muted_since", 0.0)), float(state.get("muted_until", 0.0))
        )


def why_silenced(maintenance: Sequence[Maintenance], overrides: Overrides, now: float, arrival: float) -> Reason | None:
    """Return why no incident may begin at a row of that time and arrival; None if it may."""
    if maintenance and any(each.start <= now < each.end for each in maintenance):
        return Reason.MAINTENANCE
    return Reason.MUTED if overrides.is_muted(now, arrival) else None


class UndoRecord(NamedTuple):
    """What was taken for normal last, so that `undo` can take it back.

    The entry of the incident in the history gets the reason, and who had acknowledged it, of before.
    """

    incident: str = ""  # its id; empty if it was no incident, or nothing
    reason: Reason = Reason.UNDONE
    acknowledged: str | None = None
    stuck: Sequence[tuple[str, int]] = ()  # channels that may stand still since, and their longest run before
    is_learned: bool = True  # whether the model has learned by the same command

    @classmethod
    def restored(cls, state: Sequence[Any]) -> UndoRecord:
        """Return what a stored state says."""
        taken = cls(*state)
        return taken._replace(reason=Reason(taken.reason))

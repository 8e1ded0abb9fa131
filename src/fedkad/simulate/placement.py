"""When and where the faults of a device happen: kinds, channels, rows and sizes.

They depend on the number of the device in the fleet and on its own random stream, never on the size of the fleet.
"""

from dataclasses import dataclass

import numpy as np

from fedkad.simulate.faults import FAULTS, Fault
from fedkad.simulate.pump import CHANNELS
from fedkad.simulate.recursion import FloatArray

KEEP_APART = 80
"""Rows, at least, between two faults of a device, and half as many before the first and after the last."""

_OUTAGE_ROWS = (25, 60)
_POSITIONS_TRIED = 8
_SECOND_CHANNEL_CHANCE = 0.3
_LEAST_SPREAD = 1e-3  # in units of the channel: a pump at rest throughout a short training shows none


@dataclass(frozen=True)
class FaultPlan:
    """How a kind of fault is drawn."""

    rows: tuple[int, int]  # shortest and longest duration
    severity: float  # typical size, as a multiple of the standard deviation of the channel in training
    channels: tuple[str, ...]  # where this kind occurs


PLANS: dict[str, FaultPlan] = {
    "drift": FaultPlan(
        (200, 360), 2.0, ("flow_m3h", "pressure_bar", "vibration_mms", "bearing_temp_c", "motor_temp_c")
    ),
    "lag": FaultPlan((180, 300), 0.8, ("flow_m3h", "pressure_bar", "bearing_temp_c", "motor_temp_c")),
    "decoupling": FaultPlan(
        (120, 240), 1.0, ("flow_m3h", "pressure_bar", "current_a", "vibration_mms", "bearing_temp_c")
    ),
    "spikes": FaultPlan((30, 70), 4.0, ("flow_m3h", "pressure_bar", "current_a", "vibration_mms")),
    "stuck": FaultPlan((100, 200), 1.0, CHANNELS),
}
"""How each kind of :data:`fedkad.simulate.FAULTS` is drawn."""


def kinds_of_device(number: int, faults_per_device: int) -> list[str]:
    """Return the kinds of the faults of the device with this number, from 0; every third device stays healthy.

    The kinds are dealt in turn to the devices that have faults, so that a fleet with five faults has all kinds.

    >>> kinds_of_device(0, 2), kinds_of_device(1, 2), kinds_of_device(2, 2)
    (['drift', 'lag'], ['decoupling', 'spikes'], [])
    """
    if number % 3 == 2:
        return []
    kinds = tuple(FAULTS)
    dealt = (number - number // 3) * faults_per_device
    return [kinds[(dealt + turn) % len(kinds)] for turn in range(faults_per_device)]


def rows_needed(faults_per_device: int) -> int:
    """Return the length that a test series needs for its faults and one outage.

    >>> rows_needed(2)
    480
    """
    return (faults_per_device + 1) * 2 * KEEP_APART


def damage(
    device: str,
    number: int,
    train: FloatArray,
    test: FloatArray,
    faults_per_device: int,
    generator: np.random.Generator,
) -> tuple[FloatArray, tuple[Fault, ...]]:
    """Inject the faults and the outage of this device into its healthy test series; the faults in order of time.

    Every fault is computed from the healthy series, so that none carries a trace of another.
    """
    events = kinds_of_device(number, faults_per_device)
    if number % 5 == 2:  # one device of five loses some rows
        events.insert(int(generator.integers(len(events) + 1)), "outage")
    spread = np.maximum(train.std(axis=0), _LEAST_SPREAD)
    damaged = test.copy()
    faults = []
    for event, slot in zip(events, _slots(len(test), len(events)), strict=True):
        if event == "outage":
            length = int(generator.integers(_OUTAGE_ROWS[0], _OUTAGE_ROWS[1] + 1))
            start = slot.start + int(generator.integers(len(slot) - length + 1))
            damaged[start : start + length] = np.nan
        else:
            fault = _draw_fault(device, event, test / spread, slot, generator)
            start, end = fault.start, fault.end
            for column in _columns(fault.channels):
                severity = PLANS[event].severity * generator.uniform(0.8, 1.25) * float(spread[column])
                damaged[start:end, column] = FAULTS[event](test[:, column], start, end, generator, severity)
            faults.append(fault)
    return damaged, tuple(faults)


def _columns(channels: tuple[str, ...]) -> list[int]:
    return [CHANNELS.index(name) for name in channels]


def _slots(rows: int, events: int) -> list[range]:
    """Cut the rows into one equal slot per event, each shortened by half a distance at either end."""
    margin = KEEP_APART // 2
    return [range(turn * rows // events + margin, (turn + 1) * rows // events - margin) for turn in range(events)]


def _draw_fault(device: str, kind: str, scaled: FloatArray, slot: range, generator: np.random.Generator) -> Fault:
    """Draw channels and rows of a fault.

    A stuck or late reading is a fault only while something changes: of some positions drawn at random, take the
    one at which the least moving of the channels moves most.
    """
    plan = PLANS[kind]
    channels = _draw_channels(plan.channels, generator)
    columns = _columns(channels)
    # A fault leaves more than half of the test series as it was: decoupling takes its values from there.
    length = min(int(generator.integers(plan.rows[0], plan.rows[1] + 1)), len(slot), len(scaled) // 2)
    starts = slot.start + generator.integers(0, len(slot) - length + 1, _POSITIONS_TRIED)
    movement = [scaled[start : start + length, columns].std(axis=0).min() for start in starts]
    start = int(starts[int(np.argmax(movement))])
    return Fault(device, kind, channels, start, start + length)


def _draw_channels(candidates: tuple[str, ...], generator: np.random.Generator) -> tuple[str, ...]:
    """Draw one channel, sometimes two, in the order of the columns."""
    first = int(generator.integers(len(candidates)))
    step = 1 + int(generator.integers(len(candidates) - 1))
    chosen = {first, (first + step) % len(candidates)} if generator.random() < _SECOND_CHANNEL_CHANCE else {first}
    return tuple(candidates[index] for index in sorted(chosen))

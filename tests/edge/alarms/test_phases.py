"""The phases of an incident: what they become is what the table says, which the picture in the docs is drawn from."""

from fedkad.edge.alarms.phases import IDLE, MAY_BECOME
from measurements.alarm_equality import Player, course

SEEDS = (2, 3, 8, 12, 16)
"""Devices that together show all that is in the table."""


def test_phases_become_what_the_table_says_and_all_of_it() -> None:
    seen = set()
    for seed in SEEDS:
        player = Player(seed)
        for kind, what in course(seed):
            before = player.alarms.phase
            player.step(kind, what)
            if type(before) is not type(player.alarms.phase):
                seen.add((type(before), type(player.alarms.phase)))
    assert seen == {(before, after) for before, moves in MAY_BECOME.items() for after in moves}


def test_a_normal_row_makes_no_phase() -> None:
    player = Player(0)
    calm = [what for kind, what in course(0) if kind == "row" and not what[1].is_anomaly and what[2] <= 2.0][:100]
    for what in calm:
        player.step("row", what)
        assert player.alarms.phase is IDLE

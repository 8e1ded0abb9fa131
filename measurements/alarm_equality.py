"""Whether the alarm policy of this tree tells what that of an earlier commit told, to the byte.

    python -m measurements.alarm_equality [--rows N] [--commit COMMIT]

Both trees take the same random rows in fresh processes: scores around the threshold, far above it, NaN and infinite,
devices outside their known ranges, gaps, clocks that jump both ways, channels that change, commands at any moment, with
and without budgets and rates. The state goes through JSON every hundredth row. Compared is the JSON text of every
alert, and every tenth row what else is known of the device. States of the earlier commit, one for each device, are
opened by this tree too, which has to tell the same from then on.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEFORE = "26b49a0"
"""The last commit whose policy had fields instead of phases."""

ROWS = 4000
"""Rows of one device."""

SAVED = 100
"""Rows after which the state goes through JSON."""

Array = NDArray[np.float64]

NAMES = (["flow", "pressure", "level"], ["flow", "speed", "level"], ["flow", "pressure"], ["level", "flow", "a", "b"])
REASONS = ("maintenance", "muted", "normal", "settled", "relearn", "no model")
WITNESSES = (None, ("motion", "flow moves"), ("place", "level is outside"))


@dataclass(slots=True)
class DrawnReading:
    """What the policy asks of a reading."""

    state: str
    score: float
    threshold: float
    is_anomaly: bool
    shares: Array
    seen: Array
    expected: Array
    outside_by_channel: Array
    commands: list[str]
    explanation: Any = None

    @property
    def told(self) -> Any:
        """The name that the explanation had in the earlier commit."""
        return self.explanation


def course(seed: int) -> Iterator[tuple[str, Any]]:
    """Yield what happens to one device: rows, and commands between them."""
    draw = np.random.default_rng(seed)
    names, period = NAMES[0], float(draw.choice([1.0, 60.0, 60.0, 600.0]))
    moment, threshold = float(draw.choice([0.0, 1e6, 1.7e9])) + float(draw.random()), 6.0
    regime, outside, blamed, inputs, left = "calm", 0.0, 0, list[str](), 0
    for _ in range(ROWS):
        if left <= 0:
            regime = str(draw.choice(REGIMES, p=CHANCES))
            left = int(draw.geometric(1.0 / float(draw.choice([2, 8, 40, 250]))))
            outside = float(draw.choice([0.0, 0.0, 0.2, 0.5, 1.5, 3.0]))
            blamed, inputs = (
                int(draw.integers(len(names))),
                list(draw.choice(names, int(draw.integers(3)), replace=False)),
            )
        left -= 1
        chance = float(draw.random())
        if chance < 0.01:
            yield from command(draw, moment)
        if chance > 0.9997:
            names = NAMES[int(draw.integers(len(NAMES)))]
            blamed, inputs = 0, names[:1]
            yield "channels", names
        moment += period
        if chance > 0.998:
            moment += period * float(draw.choice([-5000.0, -300.0, -40.0, -2.0, 3.0, 30.0, 1000.0, 20_000.0]))
        if draw.random() < 0.002:
            threshold = float(draw.choice([6.0, 6.0, 3.0, 0.0, -1.0, math.nan]))
        yield "row", (moment, reading(draw, regime, threshold, blamed, names, outside, inputs), outside, chance)


REGIMES = ("calm", "near", "above", "higher", "critical", "quiet", "odd", "gap")
CHANCES = (0.3, 0.2, 0.15, 0.1, 0.04, 0.15, 0.03, 0.03)
LEVELS = {"calm": (1.0, 4.5), "near": (4.0, 7.5), "above": (6.1, 8.5), "higher": (7.0, 13.0), "critical": (15.0, 30.0)}


def reading(
    draw: np.random.Generator,
    regime: str,
    threshold: float,
    blamed: int,
    names: list[str],
    outside: float,
    inputs: list[str],
) -> DrawnReading:
    """Return a random reading."""
    low, high = LEVELS.get(regime, (0.0, 3.0))
    score = float(low + (high - low) * draw.random())
    if regime == "odd":
        score = float(draw.choice([math.nan, math.inf, 1e307, score, score]))
    shares = draw.random(len(names))
    shares[blamed] += 4.0 * draw.random()
    if regime == "odd" and draw.random() < 0.3:
        shares[0] = draw.choice([math.inf, math.nan])
    distances = np.where(draw.random(len(names)) < 0.5, outside, 0.2 * outside)
    witness = WITNESSES[int(draw.integers(len(WITNESSES)))]
    return DrawnReading(
        state="gap" if regime == "gap" and draw.random() < 0.5 else "ok",
        score=score,
        threshold=threshold,
        is_anomaly=score > threshold,
        shares=shares * (score if math.isfinite(score) else 1.0),
        seen=draw.normal(size=len(names)),
        expected=draw.normal(size=len(names)),
        outside_by_channel=distances,
        commands=inputs,
        explanation=None if witness is None else SimpleNamespace(kind=witness[0], sentence=witness[1]),
    )


def command(draw: np.random.Generator, moment: float) -> Iterator[tuple[str, Any]]:
    """Yield a random command, or what else the agent does between rows."""
    kind = str(draw.choice(["acknowledge", "silence", "take_back", "interrupt"], p=[0.4, 0.2, 0.25, 0.15]))
    yield kind, {"silence": (moment, str(draw.choice(REASONS))), "interrupt": moment}.get(kind)


def settings(seed: int, alarm: Any) -> Any:
    """Return the random settings of one device, as an `Alarm` of the package that is imported."""
    draw = np.random.default_rng([seed, 1])

    def one(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    return alarm(
        budget=one("", "1/week", "1/day", "3/month"),
        min_duration=one(0.0, 0.0, 60.0, 300.0),
        release=one(0.5, 0.8, 0.8, 1.0),
        clear_after=one(0.0, 60.0, 60.0, 600.0),
        cool_down=one(0.0, 0.0, 120.0, 3600.0),
        rate_window=one(0.0, 600.0, 3600.0, 36_000.0),
        rate_limit=one(0.0, 0.1, 0.2, 0.5),
        update_every=one(0.0, 60.0, 600.0),
        settle=one(0.0, 3600.0, 86400.0),
    )


class Player:
    """Plays one device to the policy of the package that is imported, and keeps a digest of what it tells."""

    def __init__(self, seed: int) -> None:
        from fedkad.edge.alarms import Alarms
        from fedkad.edge.settings import Alarm

        self._make, self._settings = Alarms, settings(seed, Alarm)
        self._names, self._period = NAMES[0], 60.0
        self.told, self.reasons, self.last_id = 0, Counter[str](), ""
        self.texts: list[str] | None = None
        self.restore(None)
        self.begin_digest()

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        self.alarms = self._make("pump-1", self._settings, self._period, self._names, state)

    def begin_digest(self) -> None:
        """Forget what was told."""
        self._digest = blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """A digest of all that was told since."""
        return self._digest.hexdigest()

    def step(self, kind: str, what: Any) -> None:
        """Take what happens."""
        alarms, alerts = self.alarms, []
        if kind == "row":
            moment, seen, outside, chance = what
            row: Any = SimpleNamespace(time=moment, observed=chance < 0.97 or chance > 0.99)
            alerts = alarms.update(row, seen, outside=outside, is_provisional=int(moment) % 7 == 0)
        elif kind == "channels":
            self._names = what
            self.restore(json.loads(json.dumps(alarms.state())))
        elif kind == "silence":
            alerts = alarms.silence(what[0], reason_of(what[1]))
        elif kind == "acknowledge":
            alerts = alarms.acknowledge("anna")
        elif kind == "interrupt":
            alarms.interrupt(what)
        else:
            alarms.take_back(self.last_id, "bert")
        for alert in alerts:
            content = alert if isinstance(alert, dict) else alert.to_json()
            self.told += 1
            self.last_id = content["id"]
            self.reasons[content["reason"]] += 1
            self.note(json.dumps(content))

    def note(self, text: str) -> None:
        """Add a text to the digest."""
        self._digest.update(text.encode())
        if self.texts is not None:
            self.texts.append(text)

    def note_state(self) -> None:
        """Add what else is known of the device."""
        alarms, opened = self.alarms, self.alarms.open
        acknowledged = opened and (opened["acknowledged"] if isinstance(opened, dict) else opened.acknowledged)
        known = (bool(opened), acknowledged, alarms.is_quiet, alarms.incidents, alarms.watched, repr(alarms.rate))
        self.note(repr((*known, alarms.time, alarms.begun_since(alarms.time - 3600.0))))


def reason_of(text: str) -> Any:
    """Return a reason as the package that is imported takes it."""
    try:
        from fedkad.edge.alert import Reason
    except ImportError:
        return text
    return Reason(text)


def play(seed: int, steps: int | None = None, resumed: Any = None, *, texts: bool = False) -> dict[str, Any]:
    """Play a device to its end, or for so many steps; with `resumed` only what follows a state of the other tree.

    Channels that changed while something was remembered of them could end in an `IndexError` of the earlier commit.
    """
    player, half = Player(seed), int(np.random.default_rng([seed, 2]).integers(ROWS // 10, ROWS - ROWS // 10))
    player.texts = [] if texts else None
    rows, played, state, last_id, whole = 0, 0, None, "", ""
    for kind, what in course(seed):
        if played == steps:
            break
        is_skipped = resumed is not None and rows < half
        if kind == "channels" and is_skipped:
            player._names = what
        if not is_skipped:
            try:
                player.step(kind, what)
            except IndexError:
                if steps is not None:
                    raise
                break
        played += 1
        if kind != "row":
            continue
        rows += 1
        if rows == half:
            state = player.alarms.state() if resumed is None else resumed["state"]
            last_id = player.last_id if resumed is None else resumed["last_id"]
            whole = player.digest
            player.begin_digest()
            player.last_id = last_id
            player.restore(json.loads(json.dumps(state)))
        elif rows % SAVED == 0 and not is_skipped:
            player.restore(json.loads(json.dumps(player.alarms.state())))
        if rows % 10 == 0 and rows != half and not is_skipped:
            player.note_state()
    told = {
        "first": whole,
        "second": player.digest,
        "told": player.told,
        "rows": rows,
        "steps": played,
        "reasons": player.reasons,
    }
    return {**told, "state": {"state": state, "last_id": last_id}, "texts": player.texts}


def record(devices: int, states: Path | None) -> None:
    """Print a line of JSON for each device; with the states of another tree, what follows them as well."""
    given = None if states is None else states.open()
    for seed in range(devices):
        if given is None:
            line = play(seed)
        else:
            other = json.loads(given.readline())
            line = play(seed, other["steps"])
            is_saved = other["state"]["state"] is not None
            line["resumed"] = play(seed, other["steps"], other["state"])["second"] if is_saved else other["second"]
            line.pop("state")
        print(json.dumps(line))


def run(tree: Path, devices: int, states: Path | None = None) -> str:
    """Return what the code of a tree records."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    arguments = ["--record", str(devices), *([str(states)] if states else [])]
    command = [sys.executable, "-P", __file__, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Run both trees and compare; exit status 1 if anything differs."""
    if sys.argv[1:2] == ["--record"]:
        record(int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
        return
    from measurements.measure import earlier_tree

    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--commit", default=BEFORE)
    chosen = parser.parse_args()
    devices, here = -(-chosen.rows // ROWS), Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder, earlier_tree(chosen.commit) as tree:
        states = Path(folder) / "states.jsonl"
        began = time.monotonic()
        states.write_text(run(tree, devices))
        after = run(here, devices, states)
        with states.open() as lines:
            pairs = [(json.loads(one), json.loads(other)) for one, other in zip(lines, after.splitlines(), strict=True)]
    differing = [k for k, (one, other) in enumerate(pairs) if any(one[x] != other[x] for x in ("first", "second"))]
    unopened = [k for k, (one, other) in enumerate(pairs) if one["second"] != other["resumed"]]
    told, reasons = sum(other["told"] for _, other in pairs), Counter[str]()
    for _, other in pairs:
        reasons.update(other["reasons"])
    rows, broken = sum(one["rows"] for one, _ in pairs), sum(one["rows"] < ROWS for one, _ in pairs)
    print(f"{rows:,} rows of {devices:,} devices, {told:,} alerts of {chosen.commit} and of this tree.")
    print(f"{len(differing)} devices are told something else, and {len(unopened)} after a state of {chosen.commit}.")
    print(f"{broken} devices end early: there changed channels are an IndexError of {chosen.commit}.")
    print("Alerts by reason: " + ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common()))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    for k in (differing or unopened)[:20]:
        print(f"  device {k}")
    sys.exit(bool(differing or unopened))


if __name__ == "__main__":
    main()

"""One device: its samples in, its alerts out, and what it learns on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.stream import Reading, Stream
from fedkad.detect.threshold import SECONDS, parse_budget
from fedkad.edge.alarms import Alarms, Judged
from fedkad.edge.aside import done_aside
from fedkad.edge.grid import Grid, Row
from fedkad.edge.model import DeviceModel
from fedkad.edge.settings import DeviceSettings, Maintenance
from fedkad.edge.store import Store

Array = NDArray[np.float64]
Say = Callable[[str], None]

JUDGE_EVERY = 60.0
"""Seconds between two times that an adapting threshold is kept: it is long, and changes slowly."""

FORGET_EVERY = 500
"""Rows between two times that old rows are dropped."""

FEW = 700
"""Rows below which a threshold is a guess."""

MANY_AT_ONCE = 20
"""Samples without a time of their own that fell into a period with others, after which that is said."""

LEARN_RETRY = 600.0
"""Seconds before learning is tried again after it failed."""


class Watcher:
    """What an agent knows of one device.

    Parameters
    ----------
    name : str
    settings : DeviceSettings
    store : Store
        What the device stood at is read from it, and what changes is put into it; the agent commits.
    """

    def __init__(
        self, name: str, settings: DeviceSettings, store: Store, say: Say, maintenance: Sequence[Maintenance] = ()
    ) -> None:
        self.name, self.settings, self._store, self._say = name, settings, store, say
        self._maintenance = [each for each in maintenance if each.device in ("", name)]
        self._model = DeviceModel(name, settings, say)
        self._stream: Stream | None = None
        self._restore()
        self.reading: Reading | None = None
        self.row: Row | None = None
        self._arrived = self._judged_at = time.monotonic()
        self._stale_because = ""
        self._was_heard = self._is_timeless_said = self._is_end_said = False
        self._heard = self._is_silenced = self._is_stale = self._is_changed = self._was_abnormal = False
        self.listener: Callable[[dict[str, Any]], None] | None = None
        self._judge_kept = self._learning_after = 0.0

    # -- where it stood -------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        reshaped = False
        try:
            reshaped = self._go_on_from(self._store.device_state(self.name) or {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._say(f"{self.name}: what was kept of the device cannot be read ({error!r}); it begins anew.")
            self._go_on_from({"seq": self._store.last_number(self.name)})
        self._settle_learning()
        if self._model.detector is not None:
            self._fill_window(empty=reshaped)
        else:
            self._say(
                f"{self.name}: no model yet; one is made of {self._wanted()} normal rows, {self._fresh} are there."
            )

    def _go_on_from(self, state: Mapping[str, Any]) -> bool:
        """Take what was kept; True if its rows are of other channels or of another period."""
        sampling = self.settings.sampling
        self._seq, self._fresh = int(state.get("seq", 0)), int(state.get("fresh", 0))
        self._spent = int(state.get("spent", 0))
        self._counted, self.learnt = int(state.get("counted", 0)), int(state.get("learnt", 0))
        self.refused = int(state.get("refused", 0))
        self._grid = Grid(sampling, state.get("grid"))
        self._alarms = Alarms(self.name, self.settings.alarm, sampling.period, state.get("alarms"))
        shape = self._grid.state()
        reshaped = any(state["grid"][key] != shape[key] for key in ("channels", "period") if "grid" in state)
        if reshaped:  # such rows have nothing to say about these; with the first commit they are gone
            self._fresh = 0
            self._store.forget(self.name, self._seq + 1)
        return reshaped

    def _settle_learning(self) -> None:
        """Drop rows that the model has learnt from already: the agent was killed between its file and the store."""
        feed, _, through = self._model.learnt_through.rpartition(":")
        if feed == self._feed and through.isdigit() and int(through) > self._spent:
            self._spend(int(through))

    @property
    def _feed(self) -> str:
        """What the rows of this device in this store are called in the model that has learnt from them."""
        return f"{self._store.identity}/{self.name}"

    def _fill_window(self, *, empty: bool = False) -> None:
        """Bring a new stream to where the committed rows end, or leave it empty."""
        assert self._model.detector is not None
        stream = self._stream = self._model.detector.stream()
        channels = len(self.settings.sampling.channels)
        for values in [] if empty else self._store.last_rows(self.name, stream.memory, channels):
            stream.update(values, adapt=False)
        try:
            kept = self._store.judge_state(self.name)
            if kept and kept["model"] == self._model.version:
                stream.judge.restore(kept["judge"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._say(f"{self.name}: the threshold that was kept cannot be read ({error!r}); it begins anew.")

    def state(self) -> dict[str, Any]:
        """All that is to be committed."""
        return {
            "seq": self._seq,
            "fresh": self._fresh,
            "spent": self._spent,
            "counted": self._counted,
            "learnt": self.learnt,
            "refused": self.refused,
            "grid": self._grid.state(),
            "alarms": self._alarms.state(),
        }

    def put_state(self) -> None:
        """Hand what has changed to the store."""
        if not self._is_changed:
            return
        self._is_changed = False
        self._store.put_state(self.name, self.state())
        now = time.monotonic()
        if self._stream is not None and now - self._judge_kept >= JUDGE_EVERY:
            self._judge_kept = now
            state = self._stream.judge.state()
            if state:
                self._store.put_judge(self.name, {"model": self._model.version, "judge": state})

    # -- one sample -----------------------------------------------------------------------------------------------

    def take(self, moment: float | None, values: Mapping[str, float], arrival: float) -> list[dict[str, Any]]:
        """Take a sample; returns the alerts that it gives rise to, as a rule none."""
        self._arrived, self._heard, self._is_changed, self._was_heard = time.monotonic(), True, True, True
        sampling = self.settings.sampling
        if sampling.clock == "count":
            self._counted += 1
            moment = self._counted * sampling.period
        elif moment is None or sampling.clock == "arrival":
            moment = arrival
            self._tell_timeless()
        alerts: list[dict[str, Any]] = []
        for row in self._grid.add(moment, values):
            alerts += self._take_row(row, arrival)
        return alerts

    def _tell_timeless(self) -> None:
        """Say once that samples without a time come too fast: of those in one period only the first counts."""
        surplus = self._grid.duplicates + self._grid.late
        if surplus >= max(MANY_AT_ONCE, self._grid.rows) and not self._is_timeless_said:
            self._is_timeless_said = True
            self._say(
                f"{self.name}: samples come without a time that is known, and many in one period, of which only the "
                'first counts; set time_key in [source], or clock = "count" in [sampling] if they are a period apart.'
            )

    def refuse(self) -> None:
        """Count a message of the device, or a value in it, that could not be read."""
        self.refused += 1
        self._is_changed = True

    def _take_row(self, row: Row, arrival: float) -> list[dict[str, Any]]:
        self.row, self._is_stale, self._judged_at = row, False, time.monotonic()
        self._seq += 1
        alerts = self._keep_silence(row.time, row.time if self.settings.sampling.clock == "message" else arrival)
        fit_to_learn = row.complete and not self._is_silenced
        reading = self._stream.update(row.values, adapt=fit_to_learn) if self._stream is not None else None
        self.reading = reading
        if reading is not None and not self._is_silenced:
            alerts += self._judge(row, reading)
        trains = fit_to_learn and self._alarms.open is None
        abnormal = reading is not None and reading.is_anomaly
        if abnormal and not self._was_abnormal and self._stream is not None:
            # What came just before may have been the beginning of it.
            self._store.revoke(self.name, self._seq - self._stream.memory)
        self._was_abnormal = abnormal
        trains = trains and not abnormal
        self._fresh += trains
        self._store.add_row(self.name, self._seq, row.time, row.values, trains=trains)
        if self._seq % FORGET_EVERY == 0:
            self._forget()
        if self.listener is not None:
            self.listener(self.describe())
        return alerts

    def _judge(self, row: Row, reading: Reading) -> list[dict[str, Any]]:
        if reading.state == "gap":
            return self._alarms.interrupt(row.time)
        judged = Judged(row.time, reading.score, reading.threshold, reading.is_anomaly, row.observed)
        return self._alarms.update(
            judged, lambda: (reading.shares, reading.seen, reading.expected), self.settings.sampling.channels
        )

    def _keep_silence(self, row_time: float, moment: float) -> list[dict[str, Any]]:
        """Begin and end planned maintenance; rows that are only counted have no other time than their arrival."""
        silenced = any(each.start <= moment < each.end for each in self._maintenance)
        began, self._is_silenced = silenced and not self._is_silenced, silenced
        return self._alarms.silence(row_time) if began else []

    def _forget(self) -> None:
        """Drop the rows that are neither to be learnt nor needed for the window."""
        window = self._stream.memory if self._stream is not None else 0
        wanted = self._wanted()
        self._store.forget(self.name, self._seq - max(4 * wanted, window))

    def _wanted(self) -> int:
        """Rows that are gathered before something is learnt from them; 0 if nothing ever is."""
        learning = self.settings.learning
        return learning.first if self._stream is None else learning.every

    # -- time passes ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[dict[str, Any]]:
        """Notice silence, and samples that come to nothing; `now` is monotonic."""
        sampling, silent = self.settings.sampling, now - self._arrived
        alerts: list[dict[str, Any]] = []
        if silent > sampling.lateness + sampling.period and self._heard:
            self._heard = False
            for row in self._grid.flush():
                self._is_changed = True
                alerts += self._take_row(row, time.time())
        if now - self._judged_at > sampling.stale_after and not self._is_stale:
            self._is_stale = self._is_changed = True
            self._stale_because = self._why_stale(silent)
            self._say(f"{self.name}: {self._stale_because}; it is stale.")
            if self.row is not None:
                alerts += self._alarms.interrupt(self.row.time)
            if self.listener is not None:
                self.listener(self.describe())
        return alerts

    def _why_stale(self, silent: float) -> str:
        if self._was_heard and silent < self.settings.sampling.stale_after:
            return f"samples come, but in {self.settings.sampling.stale_after:g} s none could be judged"
        if self._was_heard:
            return f"no sample has come for {silent:.0f} s"
        return "no sample has come since the agent was started; check its name, and topics or path in [source]"

    def finish(self) -> list[dict[str, Any]]:
        """The source has ended: judge what still waits for late values."""
        if self._stream is None and self._fresh < self._wanted() and not self._is_end_said:
            self._is_end_said = True
            self._say(
                f"{self.name}: the input has ended with {self._fresh} of {self._wanted()} rows for a first model."
            )
        alerts: list[dict[str, Any]] = []
        for row in self._grid.flush():
            self._is_changed = True
            alerts += self._take_row(row, time.time())
        return alerts

    @property
    def is_model_renewed(self) -> bool:
        """Whether somebody has put another model in place."""
        return self._model.is_renewed()

    def take_model_over(self) -> None:
        """Go on with it, and with the window; the store must have been committed just before."""
        if self._model.reload():
            self._fill_window()
            self._settle_learning()
            self._say(f"{self.name}: a new model is in use.")

    @property
    def is_changed(self) -> bool:
        """Whether there is something to be put into the store."""
        return self._is_changed

    # -- learning -------------------------------------------------------------------------------------------------

    @property
    def is_learning_due(self) -> bool:
        """Whether enough normal rows have come, and now is a good time."""
        wanted = self._wanted()
        calm = self._alarms.open is None and time.monotonic() >= self._learning_after
        return bool(wanted) and self._fresh >= wanted and calm

    def learn(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Learn from the rows that were committed; the store must have been committed just before.

        It takes its time, and what is to be done `meanwhile` is done every half second.
        """
        through, rows = self._store.rows_to_learn(self.name, len(self.settings.sampling.channels))
        self._fresh = int(np.isfinite(rows.sum(axis=1)).sum())  # some were revoked since they were counted
        if self._fresh < self._wanted():
            return
        mark, work = f"{self._feed}:{through}", self._model.fit if self._stream is None else self._model.learn
        try:
            done_aside(lambda: work(rows, mark), meanwhile)  # learning takes more memory than all else, for a moment
        except (ValueError, OSError) as error:
            self._learning_after = time.monotonic() + LEARN_RETRY
            self._say(f"{self.name}: nothing was learnt ({error}); trying again later.")
            return
        is_first = self._stream is None
        if not self._model.reload():  # somebody has put another in its place at once
            self._learning_after = time.monotonic() + LEARN_RETRY
        else:
            self._fill_window()
            self._settle_learning()
            assert self._stream is not None
            self._store.forget(self.name, through - self._stream.memory)
            if is_first:
                self._tell_first(len(rows))

    def _tell_first(self, rows: int) -> None:
        assert self._model.detector is not None
        doubt = "; from so few it is a guess, expect false alarms" if rows < FEW else ""
        threshold = self._model.detector.threshold_
        self._say(f"{self.name}: a first model is made of {rows} rows, with threshold {threshold:.3g}{doubt}.")

    def _spend(self, through: int) -> None:
        self._fresh, self._spent, self._is_changed = 0, through, True
        self.learnt += 1
        self._store.spend(self.name, through)

    # -- what it says ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """One word: learning, warming, ok, gap, stale, maintenance or waiting."""
        if self._is_stale:
            return "stale"
        if self._is_silenced:
            return "maintenance"
        if self._stream is None:
            return "learning"
        if self.reading is None:
            return "waiting"
        return self.reading.state

    def progress(self) -> dict[str, int] | None:
        """How far the first model, or the window, has come: n of N."""
        if self._stream is None:
            return {"have": min(self._fresh, self.settings.learning.first), "need": self.settings.learning.first}
        if self.reading is None or self.reading.state == "ok":
            return None
        return {"have": self._stream.length - self.reading.missing, "need": self._stream.length}

    def snapshot(self) -> dict[str, Any]:
        """What is to be said of the device now, as plain data."""
        reading, grid, alarms = self.reading, self._grid, self._alarms
        scored = reading is not None and self.status in ("ok", "maintenance") and reading.state == "ok"
        incident = alarms.open
        return {
            "device": self.name,
            "state": self.status,
            "progress": self.progress(),
            "time": None if self.row is None else self.row.time,
            "score": reading.score if reading is not None and scored else None,
            "threshold": None if reading is None else reading.threshold,
            "abnormal": bool(reading is not None and scored and reading.is_anomaly),
            "rate": None if math.isnan(alarms.rate) else alarms.rate,
            "incident": incident,
            "why": self._stale_because if self._is_stale else grid.broken,
            "budget": self._budget(),
            "rows": grid.rows,
            "carried": grid.carried,
            "late": grid.late,
            "duplicates": grid.duplicates,
            "off_clock": grid.off_clock,
            "jumps": grid.jumps,
            "refused": self.refused,
            "incidents": alarms.incidents,
            "learnt": self.learnt,
        }

    def _budget(self) -> dict[str, Any] | None:
        """The false alarms allowed, and the alarms there were, false or not, per same time."""
        text = self.settings.alarm.budget
        allowed = parse_budget(text) if text else None
        if allowed is None:
            return None
        watched = self._alarms.watched
        measured = self._alarms.per_second * SECONDS["week"] if watched else None
        return {
            "allowed": text,
            "allowed_per_week": allowed * SECONDS["week"],
            "measured_per_week": measured,
            "watched_hours": watched / SECONDS["hour"],
        }

    def describe(self) -> dict[str, Any]:
        """One reading, for a line of JSON."""
        reading, row = self.reading, self.row
        told: dict[str, Any] = {"device": self.name, "time": row.time if row else None, "state": self.status}
        if self.progress():
            told["progress"] = self.progress()
        if reading is not None and reading.state == "ok" and not self._is_stale:
            score = reading.score if reading.score > 0.0 else 1.0
            channels = [{"channel": name, "share": share / score} for name, share in reading.channels[:3]]
            told |= {"score": reading.score, "threshold": reading.threshold, "abnormal": reading.is_anomaly}
            told |= {"channels": channels}
        return told

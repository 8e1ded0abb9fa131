"""From alarms to events: what a person reads instead of a row of zeros and ones.

A fault raises many alarms. An *event* gathers the alarms that belong together, with the moment of the highest score
and the channels to look at first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.clusters import first_of_each
from fedkad.detect.model import Model
from fedkad.detect.scoring import PIECE, ScoredWindow, SeriesScores, score_series
from fedkad.progress import Report, unheard

Array = NDArray[np.float64]


MOST_CAUSES = 3  # channels that are named for an event
LEAST_SHARE = 0.05  # a channel with a smaller share of the score is named only if it is the first


@dataclass(frozen=True)
class Cause:
    """A channel and its share of an event's score, between 0 and 1."""

    channel: str
    share: float


@dataclass(frozen=True)
class Event:
    """A run of alarms that belong together."""

    start: int  # entry of the first alarm
    end: int  # entry of the last alarm, which belongs to the event
    peak: int  # entry of the highest score
    peak_score: float
    threshold: float  # that the highest score was compared with
    causes: tuple[Cause, ...]  # all channels, the largest share first
    kind: str = ""  # the witness that leads at the peak: motion, fit or place
    sentence: str = ""  # what it says, with its channel and numbers
    about: str = ""  # the channel that the sentence is about

    def at(self, rows: NDArray[np.intp]) -> Event:
        """The event, found in these rows of a recording."""
        return replace(self, start=int(rows[self.start]), end=int(rows[self.end]), peak=int(rows[self.peak]))

    @property
    def channels(self) -> list[tuple[str, float]]:
        """Channels and their shares, the largest first, as a reading of the stream has them."""
        return [(cause.channel, cause.share) for cause in self.causes]

    @property
    def main_causes(self) -> tuple[Cause, ...]:
        """The channels to look at: that of the sentence, and those that matter most."""
        first = sorted(self.causes, key=lambda cause: cause.channel != self.about)
        return tuple(c for k, c in enumerate(first[:MOST_CAUSES]) if k == 0 or c.share >= LEAST_SHARE)


@dataclass(frozen=True)
class Gathering:
    """How alarms become events: which of them belong together, and how long an event must last; in rows."""

    merge: int = 0  # alarms at most this far apart are one event, and those at most a window apart in any case
    shortest: int = 1  # from the first alarm to the last, both counted


AS_THEY_ARE = Gathering()


def rows_within(seconds: float, period: float) -> int:
    """The most rows that are at most this long.

    >>> rows_within(90.0, 60.0), rows_lasting(90.0, 60.0)
    (1, 2)
    """
    return math.floor(seconds / period + 1e-9)


def rows_lasting(seconds: float, period: float) -> int:
    """The fewest rows that are at least this long."""
    return math.ceil(seconds / period - 1e-9)


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that a model finds in one recording, row by row."""

    scores: Array  # causal, (time,); NaN where there is none
    thresholds: Array  # that each causal score was compared with, (time,)
    alarms: NDArray[np.bool_]
    channels: tuple[str, ...]
    events: tuple[Event, ...]
    brief: int  # events that were too short to be told
    offline_scores: Array | None  # those that look ahead, (time,), if they were asked for
    shares: Array | None  # the causal scores split over the channels, (time, channel), if they were asked for


def examine(
    model: Model,
    series: Any,
    gathering: Gathering = AS_THEY_ARE,
    *,
    offline: bool = False,
    shares: bool = False,
    report: Report = unheard,
) -> Findings:
    """Judge a recording in one pass: scores, thresholds, alarms, causes and the events they make.

    Alarms at most one window of the model apart make one event, because the samples behind them overlap. With `offline`
    there are also the scores that look ahead, with `shares` those of all rows split over the channels, not only those
    of events; this takes twice the time.

    >>> from fedkad import KoopmanDetector
    >>> x = np.sin(np.arange(3000.0)[:, None] / [[7.0, 11.0]])
    >>> x += 0.05 * np.random.default_rng(0).normal(size=x.shape)
    >>> model = KoopmanDetector(rank=8).fit(x[:2000]).model_
    >>> x[2500:2520, 1] = 0.0  # a sensor gets stuck
    >>> event = max(examine(model, x[2000:]).events, key=lambda event: event.peak_score)
    >>> 500 <= event.peak < 540, event.causes[0].channel
    (True, '1')
    """
    width, channels, recording = model.settings.smoothing, model.setup.channel_names, model.setup.record(series)
    raw = score_series(model.scoring, recording.series.values, report)
    scores, thresholds, alarms = map(recording.of_rows, judge_series(model, raw))
    entries = recording.entries
    positions = entries if recording.positions is None else recording.positions
    join = max(model.settings.window, gathering.merge)
    during = np.flatnonzero(during_events(alarms, positions, join))
    everywhere = recording.of_rows(raw.causal_shares(width)) if shares else None
    split = raw.causal_shares(width, entries[during]) if everywhere is None else everywhere[during]
    some = scores[during], thresholds[during], alarms[during]
    events = [event.at(during) for event in find_events(*some, split, channels, join=join, positions=positions[during])]
    long = [event for event in events if positions[event.end] - positions[event.start] + 1 >= gathering.shortest]
    explained = tuple(_explained(model, raw, event, entries[event.start : event.end + 1]) for event in long)
    ahead = recording.of_rows(raw.offline()) if offline else None
    brief = len(events) - len(long)
    return Findings(scores, thresholds, alarms, channels, explained, brief, ahead, everywhere)


def during_events(alarms: NDArray[np.bool_], positions: NDArray[np.int64], join: int) -> NDArray[np.bool_]:
    """Which rows lie between the first and the last alarm of an event.

    >>> during_events(np.array([0, 1, 0, 1, 0, 0, 1], dtype=bool), np.arange(7), join=2).astype(int)
    array([0, 1, 1, 1, 0, 0, 1])
    """
    during = alarms.copy()
    for before, after in pairwise(np.flatnonzero(alarms).tolist()):
        if positions[after] - positions[before] <= join:
            during[before:after] = True
    return during


def judge_series(model: Model, raw: SeriesScores) -> tuple[Array, Array, NDArray[np.bool_]]:
    """The causal score of every entry, the threshold, and whether it is an alarm: by its score, or as impossible."""
    scores = raw.causal(model.settings.smoothing)
    thresholds, alarms = np.full(len(scores), model.threshold), scores > model.threshold
    for start in range(0, len(scores), PIECE):  # to save memory
        piece = slice(start, start + PIECE)
        alarms[piece] |= model.scoring.impossible(list(raw.terms[piece].T), raw.rows.values[piece])
    return scores, thresholds, alarms


def _explained(model: Model, raw: SeriesScores, event: Event, entries: NDArray[np.intp]) -> Event:
    """Explain an event, which has these entries of the scores, by what leads at its peak.

    That is by the entries that were smoothed into the peak, or into an impossible value that is not among them: what
    follows one may score higher.
    """
    scoring, rows, lead = model.scoring, raw.rows, model.settings.lead
    peak = int(entries[event.peak - event.start])
    is_impossible = scoring.impossible(list(raw.terms[entries].T), rows.values[entries])
    impossible = entries[np.broadcast_to(is_impossible, len(entries))]
    if len(impossible) and not ((impossible <= peak) & (impossible > peak - model.settings.smoothing)).any():
        peak = int(impossible[0])
    run = next(run for run in raw.runs if run[0] <= peak <= run[-1])
    at = int(np.searchsorted(run, peak)) + 1
    smoothed = run[max(at - model.settings.smoothing, 0) : at].tolist()
    windows = [ScoredWindow(rows.filled[entry - lead : entry + 1].ravel(), rows.values[entry]) for entry in smoothed]
    sample = model.setup.scaling.restore(rows.values[peak])
    kind, channel, sentence = model.settings.scoring.explain(model.setup, scoring, windows, sample)
    return replace(event, kind=kind, sentence=sentence, about=channel)


def find_events(
    scores: Array,
    thresholds: Array,
    alarms: NDArray[np.bool_],
    shares: Array,
    channels: Sequence[str],
    *,
    join: int,
    positions: NDArray[np.int64] | None = None,
) -> tuple[Event, ...]:
    """Gather alarms into events.

    Two consecutive alarms belong to one event if they are at most `join` apart: their entries, or the `positions` of
    these where time shows that rows are missing. A row that was bridged between them has no score and does not matter.

    The share of a channel is its part of the sum of the event's scores, from the first alarm to the last.

    >>> scores = np.array([np.nan, 9.0, 1.0, 8.0, 1.0, 1.0, 7.0])
    >>> events = find_events(scores, np.full(7, 5.0), scores > 5.0, scores[:, None], ["flow"], join=2)
    >>> [(event.start, event.end, event.peak) for event in events]
    [(1, 3, 1), (6, 6, 6)]
    """
    entries = np.flatnonzero(alarms)
    if not len(entries):
        return ()
    runs = np.split(entries, first_of_each(entries if positions is None else positions[entries], join)[1:])
    return tuple(_event(int(run[0]), int(run[-1]), scores, thresholds, shares, channels) for run in runs)


def _event(start: int, end: int, scores: Array, thresholds: Array, shares: Array, channels: Sequence[str]) -> Event:
    during = slice(start, end + 1)
    peak = start + int(np.nanargmax(scores[during]))
    parts, total = np.nansum(shares[during], axis=0), float(np.nansum(scores[during]))
    # A threshold set by hand may flag scores of zero, which no channel has a part in.
    portions = parts / total if total > 0.0 else np.zeros(len(channels))
    order = np.argsort(-portions, kind="stable")
    causes = tuple(Cause(channels[k], float(portions[k])) for k in order)
    return Event(start, end, peak, float(scores[peak]), float(thresholds[peak]), causes)

"""The model of a device and the window that it scores, restored from the committed rows."""

from __future__ import annotations

import logging
import time

from fedkad.detect.stream import Reading, Stream
from fedkad.edge.grid import GridRow
from fedkad.edge.model import DeviceModel
from fedkad.edge.settings import DeviceSettings
from fedkad.edge.store import Store

logger = logging.getLogger(__name__)

THRESHOLD_INTERVAL = 60.0
"""Seconds between two commits of an adapting threshold, whose state is large and changes slowly."""


class Scorer:
    """Scores the rows of a device; scores nothing until the device has a model."""

    def __init__(self, device: str, settings: DeviceSettings, store: Store) -> None:
        self._device, self._settings, self._store = device, settings, store
        self.model = DeviceModel(device, settings)
        self._stream: Stream | None = None
        self._threshold_put = 0.0

    @property
    def has_model(self) -> bool:
        """Whether rows are scored."""
        return self._stream is not None

    @property
    def memory(self) -> int:
        """Rows that the window is restored from."""
        return 0 if self._stream is None else self._stream.memory

    @property
    def length(self) -> int:
        """Rows that the first score needs."""
        return 0 if self._stream is None else self._stream.length

    def score(self, row: GridRow, *, adapt: bool) -> Reading | None:
        """The reading of a row; a threshold that adapts learns from it if `adapt`."""
        return None if self._stream is None else self._stream.update(row.values, adapt=adapt)

    def restart(self, *, empty: bool = False) -> None:
        """Score with the current model from now on, with the window of the committed rows unless `empty`."""
        assert self.model.current is not None
        stream = self._stream = Stream(self.model.current)
        channels = len(self._settings.sampling.channels)
        for values in [] if empty else self._store.last_rows(self._device, stream.memory, channels):
            stream.update(values, adapt=False)
        try:
            kept = self._store.judge_state(self._device)
            if kept and kept["model"] == self.model.version:
                stream.judge.restore(kept["judge"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s: the stored threshold cannot be read (%r); it starts again.", self._device, error)

    def put_threshold(self) -> None:
        """Put the state of an adapting threshold into the store, now and then."""
        now = time.monotonic()
        if self._stream is None or now - self._threshold_put < THRESHOLD_INTERVAL:
            return
        self._threshold_put = now
        state = self._stream.judge.state()
        if state:
            self._store.put_judge(self._device, {"model": self.model.version, "judge": state})

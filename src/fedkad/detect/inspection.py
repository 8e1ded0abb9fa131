"""What a model rests on, in words: where its threshold comes from, and how it takes each channel."""

from typing import Literal, NamedTuple

import numpy as np

from fedkad.detect.features import VALUE
from fedkad.detect.model import Model
from fedkad.detect.threshold import parse_budget

ChannelKind = Literal["predicted", "unpredictable", "switch", "constant", "input"]

UNPREDICTABLE = 0.2  # a channel of whose variance less than this share is predicted is called unpredictable

KINDS: dict[ChannelKind, str] = {
    "predicted": "judged by prediction and by place",
    "unpredictable": "hardly predicted from the samples before: mostly judged by place",
    "switch": "had two values in training: not judged by prediction, and a third value is out of place",
    "constant": "never changed in training: a change raises the score, the more the larger it is",
    "input": "given as an input: not judged by prediction",
}


class ChannelRole(NamedTuple):
    """How a model takes a channel; in the units of the channel, NaN where it does not know."""

    name: str
    kind: ChannelKind
    low: float  # of what is normal
    high: float
    predicted: float  # share of the variance that is predicted one step ahead, 0 to 1
    is_switch: bool  # at most two values in training, whatever its kind: not judged by prediction
    is_tied: bool  # whether its level must go with those of other channels


def channel_roles(model: Model) -> list[ChannelRole]:
    """How the model takes every channel."""
    setup, bounds, predicted = model.setup, model.scoring.bounds, model.scoring.predicted
    low = high = np.full(setup.channels, np.nan)
    switch = still = tied = np.zeros(setup.channels, dtype=np.bool_)
    if bounds is not None:
        switch = bounds.switch
        least, most = bounds.low[VALUE], bounds.high[VALUE]
        low, high, still = setup.scaling.restore(least), setup.scaling.restore(most), switch & (least == most)
        tied = bounds.ties.any(axis=1) & bounds.predictable & ~setup.inputs

    def kind(k: int) -> ChannelKind:
        if setup.inputs[k]:
            return "input"
        if switch[k]:
            return "constant" if still[k] else "switch"
        return "unpredictable" if predicted[k] < UNPREDICTABLE else "predicted"

    return [
        ChannelRole(name, kind(k), float(low[k]), float(high[k]), float(predicted[k]), bool(switch[k]), bool(tied[k]))
        for k, name in enumerate(setup.channel_names)
    ]


def nothing_to_teach(model: Model) -> str | None:
    """Why no other device can learn from the data of this model, or None: it stands still, or it is noise.

    >>> import numpy as np
    >>> from fedkad import KoopmanDetector
    >>> noise = np.random.default_rng(0).normal(size=(1000, 3))
    >>> nothing_to_teach(KoopmanDetector(window=4, rank=3, observables=8).fit(noise).model_)
    'no channel of its data can be predicted from the samples before'
    """
    kinds = {role.kind for role in channel_roles(model)}
    if kinds == {"constant"}:
        return "no channel of its data ever changes"
    is_noise = kinds <= {"constant", "unpredictable"}
    return "no channel of its data can be predicted from the samples before" if is_noise else None


def threshold_origin(model: Model) -> str:
    """How the threshold was set."""
    fitted, rule = model.found, model.rule  # the threshold as the rule found it, and the rule
    if fitted is None or rule is None or not isinstance(rule.threshold, str):
        return "by hand"
    allowed = f"{rule.threshold}" if parse_budget(rule.threshold) else f"{rule.rate:g} events per row"
    if fitted.value != model.threshold:
        note = "; the fleet's advice or an earlier version set it"
    else:
        note = f" ({fitted.note})" if fitted.note else ""
    rests = f"{fitted.peaks} peaks among {fitted.rows} scores of normal data"
    return f"{rests}, false alarms allowed: {allowed}{note}"

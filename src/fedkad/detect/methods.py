"""The kinds of score that a detector has by name; this module alone chooses between them."""

from collections.abc import Mapping
from typing import Literal

from fedkad.detect.calibration import PaperMethod
from fedkad.detect.crossfitting import WitnessMethod
from fedkad.detect.model import ScoringMethod
from fedkad.settingerror import SettingError

ScoringName = Literal["witnesses", "paper"]

METHODS: Mapping[str, ScoringMethod] = {"witnesses": WitnessMethod(), "paper": PaperMethod()}

EARLIER = ("motion", "calibrated")  # the names that the score of release 0.1 had; the benchmark has it as an ablation


def method_of(scoring: str | ScoringMethod) -> ScoringMethod:
    """The kind of score of that name, or the one that is passed itself."""
    if not isinstance(scoring, str) and hasattr(scoring, "calibrate"):
        return scoring
    if scoring in EARLIER:
        remedy = "'witnesses' or 'paper'; the score of release 0.1 is an ablation of the benchmark now"
        raise SettingError("scoring", scoring, f"{remedy} (fedkad_bench.methods.motion)")
    if not isinstance(scoring, str) or scoring not in METHODS:
        raise SettingError("scoring", scoring, "'witnesses' or 'paper'")
    return METHODS[scoring]


def parameter_of(method: ScoringMethod) -> str | ScoringMethod:
    """What `method_of` makes that kind of score of: its name, if it has one."""
    return method.name if METHODS.get(method.name) is method else method

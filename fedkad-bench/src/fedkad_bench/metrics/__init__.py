"""Measures of detection: pure functions of labels with scores or alarms, one family a module.

`labels` and `alarms` are boolean, `scores` floats, all `(time,)`. Three rules hold everywhere:

- An entry without a score (NaN) is never an alarm, and ranks with the smallest score of its series (`missing`).
- Without anomalies there is nothing to find: recall, F1 and areas are NaN.
- A detector without alarms has precision 0, and so F1 0.
"""

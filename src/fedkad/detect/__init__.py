"""From a model and a series to scores, causes, thresholds and decisions. numpy only.

The path of a sample: `series` checks it, `scoring` compares it with its prediction, and `threshold` judges the score.
`detector` does this for recordings and `stream` for live data; both apply the `model` that `learning` made.
"""

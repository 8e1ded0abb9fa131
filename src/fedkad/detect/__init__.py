"""From a model and a series to scores, causes, thresholds and decisions. numpy only.

The way of a sample: `series` lets it in, `scoring` compares it with its prediction, `threshold` judges the score,
and `detector` and `stream` put the three together for recordings and for live data.
"""

"""From a model and a series to scores, causes, thresholds and decisions. numpy only.

The path of a sample: `series` checks it, `scoring` compares it with its prediction, and `threshold` judges the score.
`detector` does this for recordings and `stream` for live data; both apply the `model` that `learning` made.

    doors        detector, for recordings; stream, for live data; pyodadapter, for PyOD
      series       what comes in is checked, and joined with gaps where rows are missing
      frames       data frames in and out
    model        what a device knows: settings, dynamics, statistics and the threshold, as frozen values
      dynamics     what is predicted
    learning     data to a model
      heldout      the rows that a model is calibrated on
      crossfitting, calibration    the scores of normal data, with witnesses and with the score of the paper
    scoring      a model and a series to scores; `methods` has the kinds of score by name
      witnesses    the three together: motion, windowfit and place
      place        how far outside the device is, of its `ranges`; `features` says what these are of, `ties` which
                   levels go together, `quantiles` computes them
      paper        the score of the paper
      steps        the same a sample at a time, for a stream
      bridging     rows that are missing
    threshold    set without labels, from the `clusters` of high scores and their `tail`
      tracking     one that follows its alarms
      expectation  how many false alarms to expect
    answers      events, of alarms; explanations, a sentence for each; inspection, what a model rests on
    modelfile    all of it in a file, by `tensorfile`
"""

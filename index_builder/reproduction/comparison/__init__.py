"""A comparison of all objectives and uncertainties on small data sets, by one command.

::

    grid        data sets, objectives, seeds: measure missing cells, and report
    measure     one encoder with its posteriors and the decision layer
"""

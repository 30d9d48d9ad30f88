"""All objectives × what is known of uncertainty × small data sets: one table, by one command.

::

    command     measure what is not yet, and report
    grid        data sets, objectives, seeds; each encoder once, whatever interrupts
    measure     one encoder: its posteriors, and the decision layer
    halves      a trained encoder in torch, as search and calibration want one
    table       means over seeds: Markdown, JSON, a page
"""

"""The steps of a build, with files between them.

::

    run               the directory of a build
    inputs            the files that a build needs
    steps             train, fit, export, and all of them (torch)
    gallery_steps     index, calibrate, evaluate, publish (no torch)
    checkpoints       reads the results of train and fit
    export            encoder and posterior → ONNX
    joined_graph      a trunk and a head as one graph
    sample_queries    sample queries for the page
"""

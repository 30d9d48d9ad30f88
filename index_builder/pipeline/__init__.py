"""The steps of a build, with files between them.

::

    run               the directory of a build
    steps             train, fit, export, and all of them (torch)
    gallery_steps     index, calibrate, evaluate, publish (no torch)
    checkpoints       reads the results of train and fit
    export            encoder and posterior → ONNX
    sample_queries    sample queries for the page
"""

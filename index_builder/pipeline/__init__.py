"""The steps of a build, with files between them.

::

    run               the directory of a build
    inputs            the files that a build needs
    steps             train, fit, export, and all of them (torch)
    gallery_steps     index, calibrate, evaluate, publish (no torch)
    checkpoints       what train and fit left, read back
    export            encoder and posterior → ONNX
    joined_graph      a trunk and a head as one graph
    sample_queries    queries that a visitor can try
"""

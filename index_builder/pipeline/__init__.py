"""The steps of a build, with files between them.

::

    run               the directory of a build
    build             index, calibrate, evaluate, publish (no torch); all steps in order
    steps             train, fit, export (torch)
    closed_form       train, fit, export where nothing is trained (no torch)
    export            encoder and posterior → ONNX (torch)
    graphs            ONNX graphs: joined, compared, written (no torch)
"""

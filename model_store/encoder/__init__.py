"""Pixels → Gaussian embeddings.

::

    contract     the protocol, metadata and embeddings; no ONNX Runtime
    onnx         an encoder in an ONNX file
    placement    which nodes run on which device
"""

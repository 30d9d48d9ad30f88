"""Pixels → Gaussian embeddings.

::

    contract      the protocol, input, metadata and embeddings, and an encoder that forwards to
                  another encoder; no ONNX Runtime
    onnx          an encoder in an ONNX file
    runs          runs with preallocated device memory, and the device of each node of the graph
    text          text encoder: a second ONNX file and a tokenizer
"""

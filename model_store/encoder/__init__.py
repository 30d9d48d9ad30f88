"""Pixels → Gaussian embeddings.

::

    contract      the protocol, metadata and embeddings; no ONNX Runtime
    vector_input  vectors as input, from an external encoder
    onnx          an encoder in an ONNX file
    placement     the device of each node of the graph
    forwarding    an encoder that forwards to another encoder
    bound         encoder runs that use preallocated device memory
    text          text encoder: a second ONNX file and a tokenizer
"""

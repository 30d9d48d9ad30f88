"""Pixels → Gaussian embeddings.

::

    contract      the protocol, metadata and embeddings; no ONNX Runtime
    vector_input  the input of an encoder that is elsewhere: vectors
    onnx          an encoder in an ONNX file
    placement     which nodes run on which device
    forwarding    an encoder in front of another
    bound         runs in memory of the device that stays
    text          texts in place of pixels: a second ONNX file, and a tokenizer
"""

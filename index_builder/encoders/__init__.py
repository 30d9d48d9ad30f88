"""Finds or exports the encoder that a build names; contains the built-in encoder.

::

    resolve       specification (``timm:NAME``, a path, or none) → directory of the encoder
    mobilenet_v2  writes the built-in encoder as an ONNX file, without torch

`ORIGIN.md` names the origin and the licence of the built-in encoder's weights.
"""

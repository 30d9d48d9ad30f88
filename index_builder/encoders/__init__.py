"""Encoders that a user names in one option, and the encoder that comes with the package.

::

    resolve       a specification (``timm:NAME``, a path, or none) → the directory of an encoder
    configured    the encoder of a configuration
    mobilenet_v2  the encoder in the box: its weights as an ONNX file, without torch

`ORIGIN.md` says where its weights come from, and under which licence.
"""

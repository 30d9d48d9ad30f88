"""Vectors of images; each vector is computed once for all steps of a build.

::

    images         a cache file of vectors; vectors of images, cached or computed
    encoder_file   finds the file of an encoder, and opens it once
    encoder        an encoder with a cache of its vectors; its trunk and its head as two graphs
    frozen_graph   the graph of an existing encoder up to its features; declared encoders
    table          files of vectors from other systems
"""

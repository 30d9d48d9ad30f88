"""Vectors of images; each vector is computed once for all steps of a build.

::

    store     a cache file of vectors, by network and image
    images    vectors of images, cached or computed
    opened    graphs that all steps of a build share
    encoder_file   finds the file of an encoder
    declared       an encoder file for vectors that another system computes
    table     files of vectors from other systems
    encoder   an encoder with a cache of its vectors; an encoder that returns given vectors
    halves    an encoder as two graphs: a trunk that is not trained, and a head
    frozen_graph   the graph of an existing encoder, from its input to its features
    linear    features of an encoder with a linear last layer, as arrays of NumPy
"""

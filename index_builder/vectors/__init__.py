"""Vectors of images; each is computed once for all steps of a build.

::

    store     a file of vectors, by network and image
    images    vectors of images, cached or computed
    encoder_file   finds the file of an encoder
    table     files of vectors from other systems
    declared  an encoder file for vectors whose encoder is elsewhere
    passed    an encoder that returns given vectors
    encoder   an encoder with a cache of its vectors
    halves    an untrained trunk and the rest of its encoder, as two graphs
"""

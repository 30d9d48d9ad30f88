"""Vectors of images, each computed once for all steps of a build.

::

    store     vectors in one file, by what made them and of which image
    images    images → vectors: read back, or decoded and computed
    encoder_file   where the file of an encoder lies
    table     vectors that another system has made, in the files it keeps them in
    declared  the encoder that made them, as an encoder's file
    passed    vectors of an encoder, in place of computing them
    encoder   an encoder that knows the images it has seen
    halves    a trunk that nothing trains, and the rest of its encoder, as two graphs
"""

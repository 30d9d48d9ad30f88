"""Uploaded bytes → pixels, in processes that can be lost.

::

    decoder     the protocol, and a decoder in a thread
    pool        decoder processes, and requests that wait for one
    process     a decoder process as its parent sees it
    worker      the decoder process itself
    sandbox     what the decoder process gives up before the first picture
    messages    what both say to each other
"""

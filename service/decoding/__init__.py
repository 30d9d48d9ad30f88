"""Decodes uploaded images to pixels, in disposable processes.

::

    decoder     the protocol, and a decoder in a thread
    pool        decoder processes, and the messages exchanged with them
    worker      the decoder process itself
    sandbox     confines the decoder process before its first picture
"""

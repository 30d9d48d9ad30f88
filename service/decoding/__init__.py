"""Decodes uploaded images to pixels, in disposable processes.

::

    decoder     the protocol; a decoder in threads; decoder processes, and their messages
    worker      the decoder process itself
    sandbox     confines the decoder process before its first picture
"""

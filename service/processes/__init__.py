"""The processes of a service: its workers, and what it shares with its children.

::

    workers          several processes that answer, each a whole service
    shared_pixels    images in memory that both sides map
    open_files       how many may be open
"""

"""The processes of a service: several that answer, and the parts shared with its children.

::

    supervisor       several processes that answer, kept at work
    several          how they are started, and what their parent does for all
    member           what each of them is handed
    shared_pixels    images in memory that both sides map
    open_files       how many may be open
"""

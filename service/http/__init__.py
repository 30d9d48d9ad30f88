"""The HTTP edge: only these modules know requests and responses.

::

    server             the server of a process
    drain              the time between a signal to end and the end
    connections        bounds of connections and heads
    transport          a close that loses no answer, and a limit of time
    bounded_request    bodies that cost what their size suggests
    forms              multipart forms, read whole and in memory
    understood         every part of a request is read, or refused by name
    bounded_bodies     how large a body may be, and all that are held
    middleware    request ids, bounds, headers, the log line
    limits        limits of one request and of one connection
    admission     how many requests may wait, and how long
    bodies        forms, base64, media types
    routes        paths → calls of the core
    answers       values of the core → JSON
    cursors       pages of long lists
    problems      errors → RFC 9457
    openapi       the published description
    page          what a visitor sees at ``/``
    page_files    its files, prepared for a browser
    state         what routes work on
"""

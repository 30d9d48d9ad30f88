"""The HTTP layer. No other package of the service handles HTTP requests and responses.

::

    server             starts uvicorn with the limits of this package
    drain              the delay between a stop signal and the end of the service
    connections        limits on connections and request heads
    transport          closes a connection without losing the answer; timeouts
    bounded_request    limits the cost of parsing a body
    forms              reads multipart forms into memory
    understood         refuses unknown parameters, headers and bodies
    bounded_bodies     limits the size of each body, and the memory for all bodies
    middleware         request ids, body limits, security headers, log lines
    limits             the limits of one request and of one connection
    admission          limits on concurrent requests, and deadlines
    bodies             forms, base64, media types
    routes             the paths of the service, which call the core
    answers            convert values of the core to JSON
    cursors            positions in long lists, for the next page
    problems           convert errors to problem documents (RFC 9457)
    openapi            the OpenAPI document
    page               the web page at ``/``
    page_files         serves the files of the page
    state              the objects that routes use
"""

"""The HTTP layer. No other package of the service handles HTTP requests and responses.

::

    server             starts uvicorn with limits; closes without losing the answer
    middleware         request ids, body limits, security headers, log lines; limits on concurrent
                       requests, deadlines, and the drain before the end
    limits             the limits of one request and of one connection
    bodies             receives and parses bodies and forms, within limits
    routing            the classes of routes; they refuse what a route does not read
    routes             the paths of the service, which call the core
    answers            answers that several modules of routes give
    labelling          review cases in the formats of labelling tools
    cursors            positions in long lists, for the next page
    problems           convert errors to problem documents (RFC 9457)
    documents          the OpenAPI document, and the files of the page
    page               the web page at ``/``
"""

"""``vouch-build reproduce``: measure methods × seeds on a protocol, and report them.

=================  ==============================================================================
`command`          the command ``vouch-build reproduce``
`protocols`        data, splits, outliers and settings by name
`datasets`         published data sets in the layout of their authors
`cells`            methods × seeds: each cell is measured once, also after interruptions
`evaluate`         one method, or the decision layer, on the test; thumbnails of queries
`retrieval`        a task searched with an encoder; the consensus of samples
`decision`         the decision layer, fitted to the development task, measured on the test
`metrics`          metrics and curves, from arrays
`comparison`       all objectives and their uncertainties, on small data sets
`stereo`           dense stereo matching with a learned embedding of patches
`resources`        wall time and peak memory
`summary`          report.json and text tables from cells
`page`             an HTML page from report.json
=================  ==============================================================================
"""

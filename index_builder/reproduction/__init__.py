"""``vouch-build reproduce``: measure methods × seeds on a protocol, and report them.

=================  ==============================================================================
`command`          the command ``vouch-build reproduce``
`protocols`        data, splits, outliers and settings by name
`data_sets`        published data sets in the layout of their authors: small images
`photographs`      the same: photographs
`methods`          the papers' methods: changes to a configuration
`cells`            methods × seeds: each cell is measured once, also after interruptions; its cost
`evaluate`         one method, or the decision layer, on the test; thumbnails of queries
`retrieval`        a task searched with an encoder; the consensus of samples; metrics and curves
`comparison`       all objectives and their uncertainties, on small data sets: tables of means
`compared_encoder` one encoder of a comparison, with its posteriors and the decision layer
`stereo`           dense stereo matching: measured on KITTI, if available, and on synthetic pairs
`stereo_matching`  stereo pairs, a learned embedding of patches, and the cost volume
`summary`          report.json and text tables from cells
`page`             an HTML page from report.json
=================  ==============================================================================
"""

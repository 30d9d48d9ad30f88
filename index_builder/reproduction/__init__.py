"""``vouch-build reproduce``: methods × seeds on a protocol, measured, resumed, reported.

=================  ==============================================================================
`command`          the whole of it
`protocols`        data, splits, outliers and settings by name
`datasets`         published data sets in the layout of their authors
`cells`            what is measured: each method × seed once, whatever interrupts
`evaluate`         one method, or the decision layer, on the test
`retrieval`        a task as an encoder sees it; the consensus of samples
`decision`         the decision layer, fitted to the development task and judged on the test
`metrics`          metrics and curves of plain arrays
`pictures`         queries to look at
`comparison`       all objectives × what is known of uncertainty, on small data sets
`stereo`           dense stereo matching by a learned embedding of patches
`resources`        wall time and peak memory
`summary`          cells → report.json, and tables in text
`page`             report.json → one page with everything in it
=================  ==============================================================================
"""

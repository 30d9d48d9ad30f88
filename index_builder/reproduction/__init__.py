"""``vouch-build reproduce``: methods × seeds on a protocol, measured, resumed, reported.

=================  ==============================================================================
`command`          the whole of it
`cells`            what is measured: each method × seed once, whatever interrupts
`evaluate`         one method, or the decision layer, on the test
`searched`         a task as an encoder sees it; the consensus of samples
`decision`         the decision layer, fitted to the rehearsal and judged on the test
`measures`         metrics and curves of plain arrays
`pictures`         queries to look at
`resources`        wall time and peak memory
`summary`          cells → report.json, and tables in text
`page`             report.json → one page with everything in it
=================  ==============================================================================
"""

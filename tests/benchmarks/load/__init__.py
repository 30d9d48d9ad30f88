"""Load as users make it: `photographs`, `requests`, `generator` (a process), `servers`, `chart`."""

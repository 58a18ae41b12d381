"""METRICS: one record per request, where it goes, and the counters people watch."""

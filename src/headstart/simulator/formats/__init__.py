"""Traces as files: one module per format, and `recognise`, which tells them apart by content."""

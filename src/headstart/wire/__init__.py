"""Bytes to values and back: HTTP/1.1, server-sent events, API bodies, usage dialects. No I/O."""

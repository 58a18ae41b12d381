"""Traces in virtual time, through the routing, prefix and pool code that serves requests."""

"""ROUTER: which replica takes a request, and why."""

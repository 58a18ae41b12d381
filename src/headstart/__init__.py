"""headstart: prefix caching as a layer of an LLM service."""

__version__ = "0.1.0"

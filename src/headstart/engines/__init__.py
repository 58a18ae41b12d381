"""ENGINES: how a request reaches what generates, whoever runs it."""

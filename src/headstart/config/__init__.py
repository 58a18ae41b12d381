"""Composes the components' configurations; the only reader of their files and the environment."""

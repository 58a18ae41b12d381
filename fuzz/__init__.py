"""Hostile input for everything that reads bytes from outside; see README.md."""

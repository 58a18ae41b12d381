"""Slow readers of the same formats, written from the standards alone, to judge the fast ones by."""

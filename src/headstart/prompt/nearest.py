"""A hint for a name that nobody knows: the nearest known one."""

import difflib
from collections.abc import Iterable

_MAX_NAME = 200
"""Characters of a name that count: names come from clients too, and a body may be one long name."""


def clip_name(name: str) -> str:
    """Return as much of a name as a message repeats."""
    return name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or what exists if nothing is near; empty if nothing exists."""
    options = sorted(known)
    near: list[str] = []
    if len(name) <= _MAX_NAME:  # comparing a long one would hold up the event loop
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(options)}" if options else ""

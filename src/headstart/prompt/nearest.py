"""A hint for a name that nobody knows: the nearest known one."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or what exists if nothing is near; empty if nothing exists."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(options)}" if options else ""

"""How early a client wants a request to go, where it has to wait: `x-headstart-priority`.

Smaller is earlier, as in vLLM's `priority`; without it a request has 0.
"""

import re
from collections.abc import Mapping
from typing import Final

from headstart.errors import BadRequest

PRIORITY_FIELD: Final = b"x-headstart-priority"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")
MOST: Final = 100
"""Furthest from 0, both ways: each number that is used costs the queue a line."""


def priority_of(fields: Mapping[bytes, bytes], least: int) -> int:
    """Return the priority that a request has.

    Args:
        fields: of the request's header, by lower-case name.
        least: that its tenant may have; who asks for less gets this.

    Raises:
        BadRequest: it is not a whole number from -100 to 100.
    """
    value = fields.get(PRIORITY_FIELD)
    if value is None:
        return max(0, least)
    text = value.strip().decode("latin-1")
    if not _NUMBER.fullmatch(text) or abs(int(text)) > MOST:
        raise BadRequest(
            f"The header x-headstart-priority is {text[:40]!r}; "
            f"give a whole number from -{MOST} to {MOST}.",
            param="x-headstart-priority",
        )
    return max(int(text), least)

"""What clients call their conversation: header fields in the wild.

Source: the documentation of the clients and gateways beside each name.
"""

from collections.abc import Mapping
from typing import Final

SESSION_FIELDS: Final = (
    b"x-session-id",  # common
    b"x-claude-code-session-id",  # Claude Code
    b"session-id",  # Codex
    b"thread-id",  # Codex
    b"x-session-affinity",  # OpenCode, Fireworks
    b"x-smg-routing-key",  # smg
    b"x-bf-session-id",  # Bifrost
    b"x-litellm-session-id",  # LiteLLM
)
"""Lower-case names; the first that a request has counts."""

_NAMES: Final = frozenset(SESSION_FIELDS)
_MAX_CHARACTERS: Final = 256


def session_of(fields: Mapping[bytes, bytes]) -> str:
    """Return the name of the conversation, cut at 256 characters; empty if there is none.

    Args:
        fields: of the request's header, by lower-case name.
    """
    if _NAMES.isdisjoint(fields):
        return ""
    for name in SESSION_FIELDS:
        value = fields.get(name, b"").strip()
        if value:
            return value[:_MAX_CHARACTERS].decode("latin-1")
    return ""

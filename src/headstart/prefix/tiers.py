"""Where in an engine a block lies."""

from enum import Enum
from typing import Final


class Tier(Enum):
    """Fastest first. Only blocks on the device are reused at no cost."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"

    __hash__ = object.__hash__
    # Members are unique objects; `Enum`'s own hash runs Python code for each look-up.


_TIERS: Final = {
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "DISK": Tier.DISK,
    "STORAGE": Tier.DISK,
    "EXTERNAL": Tier.REMOTE,
}
"""Media as vLLM and SGLang name them. An engine on CPUs calls its own memory `GPU` too."""


def tier_of(medium: str | None) -> Tier:
    """Return the tier of a medium; a medium that we do not know is taken for the slowest."""
    if medium is None:
        return Tier.DEVICE
    return _TIERS.get(medium) or _TIERS.get(medium.upper(), Tier.REMOTE)

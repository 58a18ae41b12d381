"""One replica's parts, and how many tokens it holds of a prompt according to them."""

from collections.abc import Mapping, Sequence

from headstart.prefix.calibration import Calibration
from headstart.prefix.counts import add_each, take_each
from headstart.prefix.entries import SIZE_UNIT_BYTES, Entry, Standing
from headstart.prefix.holdings import Holdings
from headstart.prefix.trust import Trust
from headstart.prompt.fingerprint import PromptKeys
from headstart.types import PrefixKey


class KnownReplica:
    """One replica's parts, and copies of what look-ups need most of them.

    Attributes:
        slot, name: of the replica.
        held: its part of the approximate index.
        calibration, trust: what answers and events say of the indexes.
        streams: ranks whose events are followed.
        capacity_tokens: as told; None if not.
        num_answers: with figures to judge by.
        doomed: blocks whose room is promised to what was sent and is not computed yet.
        mode, block_size, reuses_output, tokens_per_byte: see `Trust` and `Calibration`.
    """

    __slots__ = (
        "block_size",
        "calibration",
        "capacity_tokens",
        "doomed",
        "held",
        "mode",
        "name",
        "num_answers",
        "reuses_output",
        "slot",
        "streams",
        "tokens_per_byte",
        "trust",
    )

    def __init__(
        self, slot: int, name: str, held: Holdings, calibration: Calibration, trust: Trust
    ) -> None:
        self.slot = slot
        self.name = name
        self.held = held
        self.calibration = calibration
        self.trust = trust
        self.streams: set[int] = set()
        self.capacity_tokens: int | None = None
        self.num_answers = 0
        self.doomed: dict[PrefixKey, int] = {}
        self.refresh()

    def make_room(self, standing: Standing) -> None:
        """Drop what has to go for a prompt that was sent, as its engine will before it begins.

        One that takes more than half of the room, and may be refused, is waited for.
        """
        held = self.held
        if (
            held.size > held.capacity
            and 2 * standing.prompt.num_bytes <= held.capacity * SIZE_UNIT_BYTES
        ):
            standing.displaced = held.make_room()
            add_each(self.doomed, standing.displaced)

    def has_begun(self, standing: Standing) -> None:
        """Hear that a prompt was computed, or will not be: what it displaced is gone, or not."""
        take_each(self.doomed, standing.displaced)
        standing.displaced = ()

    def refresh(self) -> None:
        """Take over what calibration and trust have learned."""
        calibration = self.calibration
        self.mode = self.trust.mode
        self.block_size = calibration.block_size
        self.reuses_output = calibration.reuses_output
        self.tokens_per_byte = tokens_per_byte = calibration.scale.tokens_per_byte
        capacity_bytes = calibration.capacity_tokens / tokens_per_byte
        self.held.capacity = int(capacity_bytes) // SIZE_UNIT_BYTES


def to_tokens(
    depths: list[int],
    entries: Mapping[PrefixKey, Entry],
    prompt: PromptKeys,
    slots: Sequence[int],
    replicas: Mapping[int, KnownReplica],
) -> None:
    """Replace depths in blocks of prompt by tokens that an engine would find in its cache.

    These are full blocks of its own, and never the whole prompt: the last token is always computed.
    Where the prompt goes on after one that the replica has answered, the answer is part of it.

    Args:
        depths: one per slot.
        entries: with the prompt's blocks up to the greatest depth.
        prompt: that was looked up.
        slots: of the replicas.
        replicas: what turns bytes into tokens.

    Cost: 0.2 us per replica that holds some, 0.5 us per replica that its answer follows.
    """
    keys, ends, num_bytes = prompt.keys, prompt.ends, prompt.num_bytes
    last_depth = last_size = matched = 0
    for at, depth in enumerate(depths):
        if not depth:
            continue
        slot, key = slots[at], keys[depth - 1]
        replica = replicas[slot]
        size = replica.block_size
        if depth != last_depth:
            entry = entries[key]
        if depth != last_depth or size != last_size:
            last_depth, last_size = depth, size
            matched = _full_blocks(entry, num_bytes - ends[depth - 1], size)
        depths[at] = matched
        if replica.reuses_output and not entry.inner >> slot & 1:
            end = replica.held.ends.get(key)
            if end is not None and end.extra_tokens:
                rest = int((num_bytes - ends[depth - 1]) * replica.tokens_per_byte) - 1
                tokens = (entry.tokens >> 2) + min(rest, end.extra_tokens)
                depths[at] = max(matched, tokens // size * size)


def _full_blocks(entry: Entry, rest_bytes: int, block_size: int) -> int:
    tokens = entry.tokens >> 2
    if rest_bytes == 0:
        tokens -= 1
    return tokens // block_size * block_size if tokens > 0 else 0

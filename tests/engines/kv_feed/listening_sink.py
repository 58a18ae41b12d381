"""Who listens to the feed in tests: keeps what each stream holds, and everything it was told."""

from headstart.prefix.stream import StreamFault, StreamStanding
from headstart.wire.kv_events import ClearedBlocks, RemovedBlocks, StoredBlocks


class ListeningSink:
    """A naive index: the published hashes that each stream holds.

    Attributes:
        held: by slot and rank.
        standings: the last one told, likewise.
        faults: all that were told, in order.
        capacities: all that were told, in order, by slot.
        num_batches: applied.
        num_resets: told.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], set] = {}
        self.standings: dict[tuple[int, int], StreamStanding] = {}
        self.faults: list[StreamFault] = []
        self.capacities: dict[int, list[tuple[int | None, int | None]]] = {}
        self.num_batches = 0
        self.num_resets = 0

    def set_capacity(self, slot, tokens, block_size):
        self.capacities.setdefault(slot, []).append((tokens, block_size))

    def stream_reset(self, slot, rank, now):
        self.num_resets += 1
        self.held[slot, rank] = set()

    def stream_batches(self, slot, rank, batches, now):
        held = self.held.setdefault((slot, rank), set())
        self.num_batches += len(batches)
        for event in (event for batch in batches for event in batch.events):
            if isinstance(event, StoredBlocks):
                held.update(event.block_hashes)
            elif isinstance(event, RemovedBlocks):
                held.difference_update(event.block_hashes)
            else:
                assert isinstance(event, ClearedBlocks)
                held.clear()

    def stream_standing(self, slot, rank, standing, fault, now):
        self.standings[slot, rank] = standing
        if fault is not None:
            self.faults.append(fault)

    def stream_removed(self, slot, rank):
        self.standings.pop((slot, rank), None)
        self.held.pop((slot, rank), None)

    def is_complete(self, slot=0, rank=0):
        return self.standings.get((slot, rank)) is StreamStanding.COMPLETE

    def holds(self, names, slot=0, rank=0):
        return self.held.get((slot, rank), set()) == names

"""What each replica holds of a prompt, and how sure that is: the facade of this room.

Who asks and tells is the router (`match`, then `dispatched`, then `first_token` and `answered`, or
`failed`), the feed of KV events (`stream_*`, `set_capacity`), and the tokenizer's check
(`tokens_agree`). For each replica, by the mode of trust that evidence has put it in:

    PRECISE      what its events say, if the prompt was tokenised; else as next
    APPROXIMATE  what follows from what was sent there
    LOAD_ONLY    nothing: 0

The approximate index learns in every mode, so that falling back to it costs nothing.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from headstart.prefix.approximate import ApproximateIndex, ApproximateStatistics
from headstart.prefix.calibration import Calibration, CalibrationStatistics
from headstart.prefix.config import PrefixConfig
from headstart.prefix.correction import correct, count
from headstart.prefix.entries import Standing
from headstart.prefix.known_replica import KnownReplica, to_tokens
from headstart.prefix.precise import HoldingStatistics, PreciseIndex
from headstart.prefix.stream_step import StreamFault, StreamStanding
from headstart.prefix.trust import Trust, TrustChange, TrustConfig, TrustMode, TrustStatistics
from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.wire.kv_events import KvEventBatch

_MAX_CHANGES: Final = 256
_JUDGED_EVERY: Final = 4

_FULL_RATIO: Final = 0.98
"""Of its capacity: a replica that holds so much has to evict for the next prompt."""


class ReplicaChange(msgspec.Struct, frozen=True):
    """A replica's mode of trust changed, or the reason for it."""

    replica: str
    change: TrustChange


class ViewStatistics(msgspec.Struct, frozen=True):
    """What is known of one replica, in figures; its capacity as told, if it was."""

    replica: str
    approximate: ApproximateStatistics
    precise: HoldingStatistics
    calibration: CalibrationStatistics
    trust: TrustStatistics
    told_capacity_tokens: int | None = None


class PrefixView:
    """See the module's text. Not thread-safe; `now` is monotonic seconds and does not go back."""

    def __init__(
        self, config: PrefixConfig | None = None, trust_config: TrustConfig | None = None
    ) -> None:
        self._config = config if config is not None else PrefixConfig()
        self._trust_config = trust_config if trust_config is not None else TrustConfig()
        self._index = ApproximateIndex(self._config)
        self._precise = PreciseIndex()
        self._replicas: dict[int, KnownReplica] = {}
        self._open: dict[tuple[int, int], Standing] = {}
        self._changes: deque[ReplicaChange] = deque(maxlen=_MAX_CHANGES)
        self._has_other_modes = False
        self._last_precise: tuple[TokenPrompt | None, Sequence[int], list[int]] = (None, (), [])
        self._now = 0.0

    @property
    def num_open(self) -> int:
        """Dispatches that were neither answered nor failed yet; bounded."""
        return len(self._open)

    @property
    def num_entries(self) -> int:
        """Blocks in the approximate index, whoever and how many hold them."""
        return len(self._index.entries)

    # Replicas.

    def add_replica(self, slot: int, name: str) -> None:
        """Know a replica; it holds nothing.

        Args:
            slot: of no replica that there is.
            name: for statistics and messages.
        """
        self._index.add_replica(slot, 0)
        self._precise.add_replica(slot)
        self._replicas[slot] = KnownReplica(
            slot,
            name,
            self._index.holdings(slot),
            Calibration(self._config),
            Trust(self._trust_config, self._now),
        )

    def remove_replica(self, slot: int) -> None:
        """Forget a replica, and what was sent to it. Cost: O(its blocks + all open dispatches)."""
        del self._replicas[slot]
        self._index.remove_replica(slot)
        self._precise.remove_replica(slot)
        for name in [name for name in self._open if name[0] == slot]:
            del self._open[name]
        self._last_precise = (None, (), [])
        self._find_modes()

    def set_capacity(self, slot: int, tokens: int | None, block_size: int | None) -> None:
        """Take what the engine says of its cache, or what is configured; None is unknown."""
        replica = self._replicas[slot]
        if block_size is not None:
            replica.calibration.block_size = block_size
            self._precise.expect_block_size(slot, block_size)
        if tokens is not None and tokens != replica.capacity_tokens:
            replica.capacity_tokens = tokens
            replica.calibration.know_capacity(tokens)
        replica.refresh()

    def block_sizes(self) -> frozenset[int]:
        """Return the sizes of block that `TokenPrompt`s need keys for."""
        return self._precise.block_sizes()

    # A request's life.

    def mode(self, slot: int) -> TrustMode:
        """Return what a replica's predictions rest on."""
        return self._replicas[slot].mode

    def modes(self, slots: Sequence[int]) -> Sequence[TrustMode]:
        """Return what predictions rest on, for each of `slots`."""
        if self._has_other_modes:
            return [self._replicas[slot].mode for slot in slots]
        return (TrustMode.APPROXIMATE,) * len(slots)

    def match(
        self, prompt: PromptKeys, tokens: TokenPrompt | None, slots: Sequence[int], now: float
    ) -> list[int]:
        """Return how many of a prompt's tokens each replica holds, as its mode allows.

        Args:
            prompt: keys of its bytes.
            tokens: the prompt as tokens; None: nobody is asked precisely.
            slots: whom to ask.
            now: monotonic seconds.

        Cost: about 2 us, and 0.4 us per replica that holds some; precise look-ups come on top.
        """
        self._now = now
        matched = self._index.match(prompt.keys, slots, now)
        depths = matched[:] if self._has_other_modes else ()
        to_tokens(matched, self._index.entries, prompt, slots, self._replicas)
        if self._has_other_modes:
            self._apply_modes(prompt, tokens, slots, depths, matched)
        return matched

    def dispatched(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        """Hear that a prompt was sent to a replica; the same objects come with what became of it.

        Cost: O(1), and per block that is new to the replica.
        """
        replica = self._replicas[slot]
        if not prompt.keys and tokens is None:
            return
        standing = self._promise(replica, prompt, now)
        if tokens is not None and replica.streams:
            standing.token_prompt = tokens
            standing.precise_tokens = self._precise_tokens(slot, tokens)
            self._precise.promise(slot, tokens, standing.precise_tokens, now)
        self._keep_open(slot, standing)

    def dispatched_elsewhere(
        self, slot: int, prompt: PromptKeys, tokens: TokenPrompt | None, now: float
    ) -> None:
        """Hear that another gateway sent a prompt to a replica.

        As `dispatched`, but what comes of it teaches the index and judges nobody: by now we may
        know more than was known when it was sent, events of this very prompt included.

        Args:
            slot: of the replica.
            prompt: keys of its bytes; the same object comes with what became of it.
            tokens: with the keys of those blocks only that the replica did not hold then.
            now: monotonic seconds.
        """
        replica = self._replicas[slot]
        standing = self._promise(replica, prompt, now)
        standing.is_remote = True
        if tokens is not None and replica.streams:
            standing.token_prompt = tokens
            self._precise.promise(slot, tokens, 0, now)
        self._keep_open(slot, standing)

    def first_token(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica has computed the prompt, before it has answered in full."""
        standing = self._open.get((slot, id(prompt)))
        if standing is not None:
            if standing.displaced:
                self._replicas[slot].has_begun(standing)
            if prompt.keys:
                self._index.confirm(slot, prompt, now, self._replicas[slot].tokens_per_byte)
            if standing.token_prompt is not None:
                self._precise.withdraw(slot, standing.token_prompt)

    def answered(
        self,
        slot: int,
        prompt: PromptKeys,
        tokens: TokenPrompt | None,  # noqa: ARG002  # kept from `dispatched`
        matched_tokens: int,
        input_tokens: int | None,
        cached_tokens: int | None,
        output_tokens: int | None,
        now: float,
    ) -> None:
        """Hear that the replica has computed the prompt, and what it says of it; None is unknown.

        Without a dispatch that was told of before, nothing happens: it went to a replica that is
        no more.
        """
        standing = self._open.pop((slot, id(prompt)), None)
        if standing is None:
            return
        replica = self._replicas[slot]
        if standing.displaced:
            replica.has_begun(standing)
        if prompt.keys:
            if cached_tokens is not None:
                correct(self._index, replica, standing, cached_tokens, input_tokens, now)
            self._index.confirm(slot, prompt, now, replica.tokens_per_byte)
            if input_tokens:
                count(self._index, replica, prompt, input_tokens, output_tokens)
            if replica.held.size > replica.held.capacity:
                replica.held.make_room()
        computed = (input_tokens or 0) - (cached_tokens or 0)
        replica.held.clock += (computed if computed > 0 else 0) + (output_tokens or 0)
        if not standing.is_remote:
            replica.calibration.compare(matched_tokens, cached_tokens)
        if standing.token_prompt is not None:
            self._precise.withdraw(slot, standing.token_prompt)
        if cached_tokens is not None and input_tokens and not standing.is_remote:
            self._judge(replica, standing, input_tokens, cached_tokens, now)
        replica.refresh()

    def failed(self, slot: int, prompt: PromptKeys, now: float) -> None:
        """Hear that the replica may not have computed the prompt.

        As with `answered`, nothing happens without a dispatch.
        """
        standing = self._open.pop((slot, id(prompt)), None)
        if standing is None:
            return
        if standing.displaced:
            self._replicas[slot].has_begun(standing)
        if prompt.keys:
            self._index.withdraw(slot, prompt, now)
        if standing.token_prompt is not None:
            self._precise.withdraw(slot, standing.token_prompt)

    def estimate_tokens(self, prompt: PromptKeys, slot: int) -> int:
        """Return about how many tokens a prompt has, as far as known exactly.

        Args:
            prompt: keys of its bytes.
            slot: whose tokens per byte hold for what nobody has counted.
        """
        depth = self._index.known_depth(prompt.keys)
        tokens_per_byte = self._replicas[slot].tokens_per_byte
        if not depth:
            return int(prompt.num_bytes * tokens_per_byte)
        known = self._index.entries[prompt.keys[depth - 1]].tokens >> 2
        rest_bytes = prompt.num_bytes - prompt.ends[depth - 1]
        return known + int(rest_bytes * tokens_per_byte)

    def pressure(self, slot: int, now: float) -> tuple[int, float | None]:
        """Return the capacity believed in, in tokens, and the idle time of what would go next.

        The latter, in seconds, is of what a new prompt would evict; None while there is room.
        """
        replica = self._replicas[slot]
        held = replica.held
        oldest = held.oldest() if held.size >= _FULL_RATIO * held.capacity else None
        capacity_tokens = replica.capacity_tokens or replica.calibration.capacity_tokens
        return capacity_tokens, None if oldest is None else now - oldest

    # KV events (`engines.kv_feed.sink.KvSink`), tokens, time.

    def stream_reset(self, slot: int, rank: int, now: float) -> None:
        """Forget everything that the stream of `rank` told."""
        replica = self._replicas[slot]
        self._precise.clear(slot, rank)
        self._note(replica, replica.trust.stream_reset(rank, now), now)

    def stream_batches(
        self, slot: int, rank: int, batches: Sequence[KvEventBatch], now: float
    ) -> None:
        """Apply batches, in the order of their numbers."""
        replica = self._replicas[slot]
        replica.streams.add(rank)
        self._precise.apply(slot, rank, batches)
        self._note(replica, replica.trust.stream_flows(rank, now), now)

    def stream_standing(
        self,
        slot: int,
        rank: int,
        standing: StreamStanding,
        fault: StreamFault | None,
        now: float,
    ) -> None:
        """Hear how complete a stream is from now on, and what went wrong just now."""
        replica = self._replicas[slot]
        replica.streams.add(rank)
        self._note(replica, replica.trust.stream_standing(rank, standing, fault, now), now)

    def stream_removed(self, slot: int, rank: int) -> None:
        """Forget a stream and what it told. No replica, no stream: then it is gone already."""
        replica = self._replicas.get(slot)
        if replica is not None:
            replica.streams.discard(rank)
            self._precise.remove_rank(slot, rank)
            self._note(replica, replica.trust.stream_removed(rank, self._now), self._now)

    def tokens_agree(self, slot: int, agree: bool | None, now: float) -> None:
        """Hear whether our tokens are the engine's; None where that is not known."""
        replica = self._replicas[slot]
        self._note(replica, replica.trust.tokens_agree(agree, now), now)

    def tick(self, now: float) -> None:
        """Notice that time has passed: silence, promises and entries out of date."""
        self._index.expire(now)
        for replica in self._replicas.values():
            self._note(replica, replica.trust.tick(now), now)

    # For people.

    def take_changes(self) -> list[ReplicaChange]:
        """Return which modes changed since the last call, and forget them."""
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def statistics(self, slot: int) -> ViewStatistics:
        """Return what is known of a replica, in figures."""
        replica = self._replicas[slot]
        return ViewStatistics(
            replica=replica.name,
            approximate=self._index.statistics(slot),
            precise=self._precise.statistics(slot),
            calibration=replica.calibration.statistics(),
            trust=replica.trust.statistics(),
            told_capacity_tokens=replica.capacity_tokens,
        )

    def check_integrity(self) -> None:
        """Assert every invariant. Cost: O(everything); for tests."""
        self._index.check_integrity()
        self._precise.check_integrity()
        for replica in self._replicas.values():
            replica.calibration.check_integrity()
            replica.trust.check_integrity()
            assert replica.mode is replica.trust.mode
            assert replica.doomed == Counter(
                key
                for (slot, _), standing in self._open.items()
                if slot == replica.slot
                for key in standing.displaced
            )
        assert len(self._open) <= self._config.max_open
        assert all(slot in self._replicas for slot, _ in self._open)
        assert all(name[1] == id(standing.prompt) for name, standing in self._open.items())

    # Steps.

    def _promise(self, replica: KnownReplica, prompt: PromptKeys, now: float) -> Standing:
        if not prompt.keys:
            return Standing(prompt, now, replica.held.clock, 0, 0)
        standing = self._index.promise(replica.slot, prompt, now, replica.tokens_per_byte)
        replica.make_room(standing)
        return standing

    def _keep_open(self, slot: int, standing: Standing) -> None:
        self._open[slot, id(standing.prompt)] = standing
        if len(self._open) > self._config.max_open:
            (oldest_slot, _), oldest = next(iter(self._open.items()))
            self._replicas[oldest_slot].has_begun(oldest)
            del self._open[oldest_slot, id(oldest.prompt)]

    def _apply_modes(
        self,
        prompt: PromptKeys,
        tokens: TokenPrompt | None,
        slots: Sequence[int],
        depths: Sequence[int],
        matched: list[int],
    ) -> None:
        modes = [self._replicas[slot].mode for slot in slots]
        if tokens is not None and TrustMode.PRECISE in modes:
            precise = self._precise.match(tokens, slots)
            self._spare_doomed(prompt, slots, depths, matched, precise)
            self._last_precise = (tokens, slots, precise)
            for at, mode in enumerate(modes):
                if mode is TrustMode.PRECISE:
                    matched[at] = precise[at]
        for at, mode in enumerate(modes):
            if mode is TrustMode.LOAD_ONLY:
                matched[at] = 0

    def _spare_doomed(
        self,
        prompt: PromptKeys,
        slots: Sequence[int],
        depths: Sequence[int],
        matched: Sequence[int],
        precise: list[int],
    ) -> None:
        """Leave out of `precise` what is there now and will have gone when the prompt is computed.

        Engines keep nothing for a request that waits. Where blocks are evicted for those before
        it, the approximate index has dropped them when those were sent.
        """
        keys = prompt.keys
        for at, slot in enumerate(slots):
            doomed = self._replicas[slot].doomed
            if doomed and depths[at] < len(keys) and keys[depths[at]] in doomed:
                precise[at] = min(precise[at], matched[at])

    def _precise_tokens(self, slot: int, tokens: TokenPrompt) -> int:
        last, slots, matched = self._last_precise
        if last is tokens and slot in slots:
            return matched[slots.index(slot)]
        return self._precise.match(tokens, (slot,))[0]

    def _judge(
        self,
        replica: KnownReplica,
        standing: Standing,
        input_tokens: int,
        cached_tokens: int,
        now: float,
    ) -> None:
        """Let trust know how right both indexes were."""
        if not replica.streams and replica.mode is TrustMode.APPROXIMATE:
            # All it can find is that predictions are hopeless; for that a sample will do, and
            # judging takes as long as everything else about an answer.
            replica.num_answers += 1
            if replica.num_answers % _JUDGED_EVERY:
                return
        size = replica.block_size
        predicted = standing.tokens + (standing.extra_tokens if replica.reuses_output else 0)
        change = replica.trust.answered(
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
            block_size=size,
            precise_tokens=standing.precise_tokens,
            approximate_tokens=min(predicted, input_tokens - 1) // size * size,
            now=now,
            sent_s=standing.sent_at,
        )
        self._note(replica, change, now)
        # The last token is always computed, and its block, known already, need not be announced.
        if replica.streams and (input_tokens - 1) // size * size - cached_tokens >= size:
            self._note(replica, replica.trust.prefilled(standing.sent_at, now), now)

    def _note(self, replica: KnownReplica, change: TrustChange | None, now: float) -> None:
        self._now = now
        if change is not None:
            self._changes.append(ReplicaChange(replica.name, change))
            replica.refresh()
            self._find_modes()

    def _find_modes(self) -> None:
        self._has_other_modes = any(
            replica.mode is not TrustMode.APPROXIMATE for replica in self._replicas.values()
        )

"""What this process tells: notes dispatches as they come, and makes a batch of them on demand.

On the request's path a call appends the dispatch to a list, or puts its replica into a set. All
else happens when a batch is made, some milliseconds later, for all of them at once.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from headstart.prompt.fingerprint import PromptKeys
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.dispatch import Dispatch
from headstart.routing.gossip.roster import Roster
from headstart.routing.replica import Replica
from headstart.wire.gossip import (
    MAX_BATCH_KEYS,
    MAX_BATCH_LOADS,
    MAX_BATCH_PROMPTS,
    MAX_BLOCK_SIZES,
    MAX_PROMPT_BYTES,
    GossipBatch,
    Kind,
    LoadReport,
    Outcome,
    SentPrompt,
    TokenKeys,
    pack_ends,
    pack_keys,
)


class Outbox:
    """A `routing.observer.DispatchObserver` that collects.

    Bounded: what is above the bounds of one batch is not told and counted; its load is told all the
    same. Peers then learn the prompt when it comes the next time.

    Args:
        sender: this process's name.
        epoch: when its life began, in ns since 1970.
        roster: what the replicas are called.
        tells_prompts: peers keep an index too; else load is all that is told.
        wake: called at the first thing to tell after a batch, so that one is made soon.

    Attributes:
        num_dropped: prompts, and what became of them, not told.
    """

    __slots__ = (
        "_computed",
        "_epoch",
        "_next_batch",
        "_next_prompt",
        "_num_keys",
        "_open",
        "_outcomes",
        "_roster",
        "_sender",
        "_sent",
        "_tells_prompts",
        "_touched",
        "_wake",
        "num_dropped",
    )

    def __init__(
        self,
        sender: str,
        epoch: int,
        roster: Roster,
        wake: Callable[[], None],
        *,
        tells_prompts: bool = True,
    ) -> None:
        self._sender = sender
        self._epoch = epoch
        self._roster = roster
        self._wake = wake
        self._tells_prompts = tells_prompts
        self._next_batch = 0
        self._next_prompt = 0
        self._num_keys = 0
        # With its prompt, which whoever sent it may drop when it has ended.
        self._sent: list[tuple[Dispatch, PromptKeys, TokenPrompt | None]] = []
        self._computed: list[Dispatch] = []
        self._outcomes: list[Dispatch] = []
        self._touched: set[Replica] = set()
        self._open: dict[Dispatch, int] = {}  # told and not ended, by their numbers
        self.num_dropped = 0

    # From the router, on the request's path.

    def sent(self, dispatch: Dispatch) -> None:
        """Note a request that was sent."""
        if not self._touched:
            self._wake()
        self._touched.add(dispatch.decision.replica)
        if not self._tells_prompts:
            return
        request = dispatch.request
        self._sent.append((dispatch, request.prompt, request.tokens))
        if len(self._sent) > MAX_BATCH_PROMPTS:
            self._sent.pop()
            self.num_dropped += 1

    def first_token(self, dispatch: Dispatch) -> None:
        """Note that a replica has less to prefill, and has computed the prompt."""
        if not self._touched:
            self._wake()
        self._touched.add(dispatch.decision.replica)
        if self._tells_prompts:
            self._computed.append(dispatch)

    def answered(self, dispatch: Dispatch) -> None:
        """Nothing: what the engine reported is in the dispatch when it ends."""

    def ended(self, dispatch: Dispatch) -> None:
        """Note what came of a request."""
        if not self._touched:
            self._wake()
        self._touched.add(dispatch.decision.replica)
        if self._tells_prompts:
            self._outcomes.append(dispatch)

    # From the carrier.

    def take_changes(self) -> GossipBatch | None:
        """Return what is new since the batch before; None if nothing is."""
        if not self._touched:
            return None
        touched, self._touched = self._touched, set()
        return self._batch(Kind.CHANGES, self._reports(touched, skips_idle=False))

    def take_snapshot(self) -> GossipBatch:
        """Return the whole load, and what else is new."""
        self._touched = set()
        return self._batch(Kind.SNAPSHOT, self._reports(self._roster.replicas, skips_idle=True))

    def take_farewell(self) -> GossipBatch:
        """Return the last batch: nothing is open any more, or it ends with the process."""
        self._touched = set()
        return self._batch(Kind.FAREWELL, [])

    def check_integrity(self) -> None:
        """Assert the bounds, and that whoever has something to tell has woken the carrier."""
        assert len(self._sent) <= MAX_BATCH_PROMPTS
        assert bool(self._touched) or not (self._sent or self._computed or self._outcomes)
        assert len(set(self._open.values())) == len(self._open)
        assert all(number < self._next_prompt for number in self._open.values())

    def _batch(self, kind: Kind, loads: list[LoadReport]) -> GossipBatch:
        batch = GossipBatch(
            sender=self._sender,
            epoch=self._epoch,
            number=self._next_batch,
            kind=kind,
            loads=loads,
            # In this order: what follows refers to what precedes it.
            sent=self._take_sent(),
            computed=self._take_computed(),
            outcomes=self._take_outcomes(),
        )
        self._next_batch += 1
        return batch

    def _reports(self, replicas: Iterable[Replica], *, skips_idle: bool) -> list[LoadReport]:
        reports: list[LoadReport] = []
        for replica in replicas:
            its_id = self._roster.id_of(replica)
            if its_id is None:
                continue  # removed since
            load = replica.load.own()
            if not skips_idle or load.in_flight:
                reports.append(
                    LoadReport(
                        its_id,
                        load.in_flight,
                        load.num_pending,
                        load.pending_tokens,
                        load.active_tokens,
                    )
                )
        return reports[:MAX_BATCH_LOADS]

    def _take_sent(self) -> list[SentPrompt]:
        dispatches, self._sent = self._sent, []
        prompts: list[SentPrompt] = []
        room = MAX_BATCH_KEYS
        for dispatch, keys, tokens in dispatches:
            its_id = self._roster.id_of(dispatch.decision.replica)
            if its_id is None or keys.num_bytes > MAX_PROMPT_BYTES or not (keys.keys or tokens):
                continue
            prompt = _prompt(self._next_prompt, its_id, dispatch, keys, tokens)
            if prompt.num_keys > room:
                self.num_dropped += 1
                continue
            room -= prompt.num_keys
            self._next_prompt += 1
            self._open[dispatch] = prompt.number
            prompts.append(prompt)
        return prompts

    def _take_computed(self) -> list[int]:
        dispatches, self._computed = self._computed, []
        numbers = [self._open[dispatch] for dispatch in dispatches if dispatch in self._open]
        self.num_dropped += max(len(numbers) - MAX_BATCH_PROMPTS, 0)
        return numbers[:MAX_BATCH_PROMPTS]

    def _take_outcomes(self) -> list[Outcome]:
        dispatches, self._outcomes = self._outcomes, []
        outcomes: list[Outcome] = []
        for dispatch in dispatches:
            number = self._open.pop(dispatch, None)
            if number is None:
                continue  # its prompt was not told
            if len(outcomes) == MAX_BATCH_PROMPTS:
                self.num_dropped += 1
                continue
            outcomes.append(
                Outcome(
                    number,
                    dispatch.is_answered or dispatch.first_at is not None,
                    dispatch.input_tokens,
                    dispatch.cached_tokens,
                    dispatch.output_tokens,
                )
            )
        return outcomes


def _prompt(
    number: int,
    its_id: bytes,
    dispatch: Dispatch,
    prompt: PromptKeys,
    tokens: TokenPrompt | None,
) -> SentPrompt:
    """Return what is told of a dispatch."""
    matched = dispatch.matched_tokens
    return SentPrompt(
        number,
        its_id,
        pack_keys(prompt.keys),
        pack_ends(prompt.ends),
        prompt.num_bytes,
        matched,
        None if tokens is None else tokens.num_tokens,
        () if tokens is None else _token_keys(tokens, matched or 0),
    )


def _token_keys(tokens: TokenPrompt, matched_tokens: int) -> list[TokenKeys]:
    return [
        TokenKeys(block_size, pack_keys(keys[matched_tokens // block_size :]))
        for block_size, keys in islice(tokens.keys_by_block_size.items(), MAX_BLOCK_SIZES)
    ]

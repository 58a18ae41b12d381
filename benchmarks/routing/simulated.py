"""The workloads in virtual time: the gateway's own router over replicas like the mock engine.

A replica is a cache of blocks and one prefill after another; an answer comes `answer_s` after its
prefill. The same figures come out as with real processes, without their noise, in a second or two.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from benchmarks.routing.workloads import MockBlocks, Workload, body_of, mock_blocks
from headstart.prompt.fingerprint import PromptKeys, namespace, prompt_keys
from headstart.routing.dispatch import Dispatch
from headstart.routing.policy import RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.router import Router
from headstart.wire.openai import peek_request

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What a simulated replica is like.

    Attributes:
        num_blocks: that its cache holds.
        token_s: prefill of one uncached token.
        answer_s: from the end of a prefill to the answer.
        slowness: of each replica, a factor on `token_s`.
    """

    num_blocks: int = 4000
    token_s: float = 25e-6
    answer_s: float = 0.015
    slowness: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)


@dataclass(slots=True)
class _Engine:
    model: EngineModel
    token_s: float
    busy_until: float = 0.0
    num_requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def accept(self, prompt: MockBlocks, now: float) -> tuple[float, int]:
        """Return when the answer comes, and the cached tokens."""
        blocks, hits = self.blocks, 0
        for key in prompt.keys:
            if key not in blocks:
                break
            hits += 1
        for key in reversed(prompt.keys):  # so that heads are the most recent
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self.model.num_blocks:
            blocks.popitem(last=False)
        cached = hits * BLOCK_TOKENS
        self.num_requests += 1
        self.cached_tokens += cached
        self.prompt_tokens += prompt.num_tokens
        uncached_s = (prompt.num_tokens - cached) * self.token_s
        self.busy_until = max(self.busy_until, now) + uncached_s
        return self.busy_until + self.model.answer_s, cached


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workload came to.

    Attributes:
        hit_ratio: cached over all prompt tokens.
        busiest_share: requests of the busiest replica over the mean.
        p50_s: median time of an answer.
        p99_s: 99th percentile.
        num_requests: of each replica.
    """

    hit_ratio: float
    busiest_share: float
    p50_s: float
    p99_s: float
    num_requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Prepared:
    body: bytes
    keys: PromptKeys
    blocks: MockBlocks


def prepared(workload: Workload) -> list[list[_Prepared]]:
    """Return the requests of `workload` as gateway and engine see them."""
    return [[_prepare(body_of(messages)) for messages in turns] for turns in workload.conversations]


def _prepare(body: bytes) -> _Prepared:
    peek = peek_request(body)
    keys = prompt_keys(peek.prompt_parts(), namespace(peek.model_name(), ""))
    return _Prepared(body, keys, mock_blocks(body))


def simulate(
    conversations: Sequence[Sequence[_Prepared]],
    num_clients: int,
    make_router: Callable[[Sequence[Replica]], Router],
    model: EngineModel | None = None,
) -> Outcome:
    """Work the conversations off in virtual time."""
    model = model or EngineModel()
    engines = [_Engine(model, model.token_s * factor) for factor in model.slowness]
    replicas = tuple(Replica(f"127.0.0.1:{9201 + slot}", slot=slot) for slot in range(len(engines)))
    router = make_router(replicas)
    for replica in replicas:
        router.add_replica(replica)
    waiting = deque(conversations)
    events: list[tuple[float, int, deque[_Prepared], Dispatch, int]] = []
    order, times = count(), []

    def send(turns: deque[_Prepared], now: float) -> None:
        one = turns.popleft()
        request = RoutingRequest(
            "mock", one.keys, prompt_bytes=len(one.body), now=now, is_stream=False
        )
        dispatch = router.send(request, replicas)
        done_at, cached = engines[dispatch.replica.slot].accept(one.blocks, now)
        heappush(events, (done_at, next(order), turns, dispatch, cached))

    for client in range(min(num_clients, len(waiting))):
        send(deque(waiting.popleft()), client * 1e-4)
    now = 0.0
    while events:
        now, _, turns, dispatch, cached = heappop(events)
        times.append(now - dispatch.sent_at)
        router.answered(dispatch, dispatch.request.prompt.num_bytes // 4, cached, 12, now)
        router.ended(dispatch, now)
        if turns or waiting:
            send(turns or deque(waiting.popleft()), now + 2e-4)
    return _outcome(engines, sorted(times))


def _outcome(engines: Sequence[_Engine], times: Sequence[float]) -> Outcome:
    requests = tuple(engine.num_requests for engine in engines)
    return Outcome(
        hit_ratio=sum(engine.cached_tokens for engine in engines)
        / sum(engine.prompt_tokens for engine in engines),
        busiest_share=max(requests) * len(engines) / sum(requests),
        p50_s=times[len(times) // 2],
        p99_s=times[int(len(times) * 0.99)],
        num_requests=requests,
    )

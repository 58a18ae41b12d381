"""Five workloads on which routing by prefix shows what it is worth.

Each is a list of conversations that a number of clients work off, one request after another:

    pairs       41 prompts of 4,000 tokens, all once and then all again, by one client
    sessions    48 chats of 6 turns behind one system prompt, 16 clients
    hot_prefix  one prompt of 4,000 tokens in 7 of 10 requests, 30 others in the rest, 48 clients
    tenants     16 tenants' prompts of 3,000 tokens behind one of 2,000, 24 clients
    capacity    48 prompts of 4,000 tokens, three times what one cache holds, 8 clients

The text is random words, four bytes and a bit to a token, as the mock engine counts them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_digest

from headstart.types import JsonObject

Messages = list[JsonObject]

_WORDS = tuple(f"w{number:03d}" for number in range(997))


@dataclass(frozen=True, slots=True)
class Workload:
    """What clients send.

    Attributes:
        name: short.
        num_clients: so many requests are open at a time.
        conversations: each a list of requests that follow each other.
    """

    name: str
    num_clients: int
    conversations: list[list[Messages]]

    @property
    def num_requests(self) -> int:
        """All of them."""
        return sum(map(len, self.conversations))


def workloads(seed: int = 1) -> list[Workload]:
    """Return the five, drawn anew for each `seed`."""
    makers: tuple[Callable[[Random], Workload], ...] = (
        _pairs,
        _sessions,
        _hot_prefix,
        _tenants,
        _capacity,
    )
    return [make(Random(f"{seed} {make.__name__}")) for make in makers]


def body_of(messages: Messages) -> bytes:
    """Return the request body."""
    body = {"model": "mock", "messages": messages, "max_tokens": 8, "temperature": 0}
    return json.dumps(body, separators=(",", ":")).encode()


def ideal_hit_ratio(workload: Workload) -> float:
    """Return the hit ratio of one cache that never forgets and sees the requests in order."""
    seen: set[bytes] = set()
    cached = total = 0
    for messages in (each for turns in workload.conversations for each in turns):
        blocks = mock_blocks(body_of(messages))
        known = next((i for i, block in enumerate(blocks.keys) if block not in seen), None)
        cached += 16 * (len(blocks.keys) if known is None else known)
        total += blocks.num_tokens
        seen.update(blocks.keys)
    return cached / total


@dataclass(frozen=True, slots=True)
class MockBlocks:
    """A prompt as the mock engine caches it.

    Attributes:
        keys: of its blocks of 64 bytes, each chained with those before it.
        num_tokens: four bytes each.
    """

    keys: tuple[bytes, ...]
    num_tokens: int


def mock_blocks(body: bytes) -> MockBlocks:
    """Return the blocks of `body`, from its messages on."""
    text = body[body.index(b'"messages"') :]
    keys, key = [], b""
    for start in range(0, len(text) - 63, 64):
        key = xxh3_64_digest(key + text[start : start + 64])
        keys.append(key)
    return MockBlocks(tuple(keys), len(text) // 4)


def _text(rng: Random, num_tokens: int) -> str:
    return " ".join(rng.choices(_WORDS, k=num_tokens * 4 // 5))


def _chat(system: str, *turns: str) -> Messages:
    roles = ("user", "assistant")
    messages: Messages = [{"role": "system", "content": system}]
    messages += [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return messages


def _pairs(rng: Random) -> Workload:
    prompts = [_text(rng, 4000) for _ in range(41)]
    return Workload("pairs", 1, [[_chat(prompt, _text(rng, 60))] for prompt in prompts * 2])


def _sessions(rng: Random) -> Workload:
    system = _text(rng, 1000)
    conversations = []
    for _ in range(48):
        turns = [_text(rng, 120) for _ in range(11)]
        conversations.append([_chat(system, *turns[:upto]) for upto in range(1, 12, 2)])
    return Workload("sessions", 16, conversations)


def _hot_prefix(rng: Random) -> Workload:
    hot, others = _text(rng, 4000), [_text(rng, 4000) for _ in range(30)]
    prompts = [hot if rng.random() < 0.7 else rng.choice(others) for _ in range(600)]
    return Workload("hot_prefix", 48, [[_chat(prompt, _text(rng, 300))] for prompt in prompts])


def _tenants(rng: Random) -> Workload:
    common, tenants = _text(rng, 2000), [_text(rng, 3000) for _ in range(16)]
    prompts = [f"{common} {rng.choice(tenants)}" for _ in range(500)]
    return Workload("tenants", 24, [[_chat(prompt, _text(rng, 200))] for prompt in prompts])


def _capacity(rng: Random) -> Workload:
    prompts = [_text(rng, 4000) for _ in range(48)]
    chosen = [rng.choice(prompts) for _ in range(480)]
    return Workload("capacity", 8, [[_chat(prompt, _text(rng, 100))] for prompt in chosen])

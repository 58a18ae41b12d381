"""An engine's prefix cache by vLLM's rules (`kv.pool`), without the engine; and real sessions."""

import gzip
import json
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from headstart.kv.block_table import BlockTable
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from headstart.kv.hashing import root_hash
from headstart.kv.pool import BlockPool
from headstart.prompt.fingerprint import PromptKeys, namespace, prompt_keys
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from headstart.types import TokenId
from headstart.wire.kv_events import (
    ClearedBlocks,
    KvEventBatch,
    RemovedBlocks,
    StoredBlocks,
    WireKvEvent,
    integer_block_hash,
)
from headstart.wire.openai import peek_request

BLOCK_SIZE = 16
ROOT = root_hash("model", None)
WORD = re.compile(r" ?\w{1,5}|\s|[^\w\s]")


def tokenize(text: str) -> list[TokenId]:
    """Split as tokenizers do, about: pieces of words, and every mark by itself."""
    return [TokenId(zlib.crc32(piece.encode())) for piece in WORD.findall(text)]


@dataclass(frozen=True)
class Turn:
    """One request: keys of its JSON, its tokens as rendered, and the answer's."""

    prompt: PromptKeys
    token_ids: list[TokenId]
    output_ids: list[TokenId]


@dataclass
class CacheEngine:
    """Answers at once, one request at a time."""

    num_blocks: int
    pool: BlockPool = field(init=False)
    batches: list[KvEventBatch] = field(default_factory=list)

    def __post_init__(self):
        self.reset()

    def reset(self):
        """Restart it: nothing is cached."""
        self.pool = BlockPool(self.num_blocks, BLOCK_SIZE)

    def serve(self, turn: Turn) -> int:
        """Compute a prompt and its answer; returns how many tokens came from the cache.

        What it would have published is added to `batches`.
        """
        table = BlockTable(self.pool, turn.token_ids, ROOT)
        hits = table.match()
        assert table.admit(hits), "the prompt is larger than the cache"
        table.commit(table.num_tokens)
        for token_id in turn.output_ids[:-1]:  # the last one is never computed
            table.append(token_id)
        table.grow()
        table.commit(table.num_tokens)
        table.release()
        self.batches.append(KvEventBatch(0.0, tuple(map(on_the_wire, self.pool.take_events()))))
        return len(hits) * BLOCK_SIZE


def on_the_wire(event: KvEvent) -> WireKvEvent:
    """A pool's event as an engine publishes it."""
    match event:
        case BlockStored():
            parent = event.parent_block_hash
            return StoredBlocks(
                tuple(map(integer_block_hash, event.block_hashes)),
                None if parent is None else integer_block_hash(parent),
                tuple(event.token_ids),
                event.block_size,
            )
        case BlockRemoved():
            return RemovedBlocks(tuple(map(integer_block_hash, event.block_hashes)))
        case AllBlocksCleared():
            return ClearedBlocks()


def token_prompt(token_ids: list[TokenId]) -> TokenPrompt:
    """What the gateway makes of a prompt that it can tokenise."""
    keys = block_keys(token_ids, BLOCK_SIZE, block_root("", ""))
    return TokenPrompt(len(token_ids), {BLOCK_SIZE: keys})


def render(message) -> str:
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    return f"<|im_start|>{message['role']}\n{message.get('content') or ''}{calls}<|im_end|>\n"


def turns(messages, tools_json: str) -> Iterator[Turn]:
    """Each answer of a conversation is a request with everything before it."""
    head = tokenize(f"<|im_start|>tools\n{tools_json}<|im_end|>\n")
    rendered = [tokenize(render(message)) for message in messages]
    texts = [json.dumps(message) for message in messages]
    opening = tokenize("<|im_start|>assistant\n")
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            before = ",".join(texts[:at])
            body = f'{{"model":"m","tools":{tools_json},"messages":[{before}]}}'
            keys = prompt_keys(peek_request(body.encode()).prompt_parts(), namespace("m", ""))
            prompt = [*head, *(token for ids in rendered[:at] for token in ids)]
            output = rendered[at][len(opening) : -1]
            yield Turn(keys, [*prompt, *opening], output or tokenize("ok"))


def read_airline_sessions(test_data: Path, num_sessions: int) -> list[list[Turn]]:
    """Real agent sessions of some twelve turns, all with the same tools and policy."""
    folder = test_data / "data" / "sessions"
    tools = json.dumps(json.loads((folder / "airline_tools.json").read_text()))
    with gzip.open(folder / "tau_airline.sessions.jsonl.gz", "rt") as lines:
        return [
            list(turns(json.loads(line)["messages"], tools)) for line in islice(lines, num_sessions)
        ]


def interleaved(sessions: list[list[Turn]], num_at_once: int) -> Iterator[Turn]:
    """One turn of each of `num_at_once` sessions after the other; new ones follow ended ones."""
    waiting = deque(iter(session) for session in sessions)
    running = deque(waiting.popleft() for _ in range(min(num_at_once, len(waiting))))
    while running:
        session = running.popleft()
        turn = next(session, None)
        if turn is not None:
            yield turn
            running.append(session)
        elif waiting:
            running.append(waiting.popleft())

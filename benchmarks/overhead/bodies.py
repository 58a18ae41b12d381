"""Request bodies for the load generator: one JSON body a line, a counter's place in each."""

import json
import random
from pathlib import Path

TEXT = (
    "cache prefix token router replica request block hash tree miss hit prompt system user tool "
    "answer page memory queue load balance schema field window stream event policy tenant agent"
)
WORDS = TEXT.split()
COUNTER = "@@@@@@@@@@@@"  # the load generator writes a number over it, so no two are equal
NUM_FAMILIES = 8
NUM_BODIES = 256
SIZES = {"small": (400, 300), "large": (24_000, 8_000)}
"""Characters of the shared system prompt and of the user's message: 0.8 KB and 32 KB bodies."""


def write_bodies(folder: Path) -> None:
    """Write `small_plain`, `small_stream`, `large_plain` and `large_stream` as .jsonl."""
    for size, (num_system, num_user) in SIZES.items():
        rng = random.Random(7)
        families = [_text(rng, num_system) for _ in range(NUM_FAMILIES)]
        users = [f"{_text(rng, num_user)} {COUNTER}" for _ in range(NUM_BODIES)]
        for kind in ("plain", "stream"):
            lines = [
                json.dumps(_body(families[index % NUM_FAMILIES], user, kind == "stream"))
                for index, user in enumerate(users)
            ]
            (folder / f"{size}_{kind}.jsonl").write_text("\n".join(lines) + "\n")


def _body(system: str, user: str, is_stream: bool) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body: dict[str, object] = {"model": "mock", "messages": messages, "max_tokens": 32}
    if is_stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


def _text(rng: random.Random, num_characters: int) -> str:
    words: list[str] = []
    length = 0
    while length < num_characters:
        words.append(rng.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:num_characters]

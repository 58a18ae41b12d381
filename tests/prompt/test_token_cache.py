"""Tokens with memory are the tokens without."""

import gzip
import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.engines.embedded.gguf import load_gguf
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.fingerprint import namespace, prompt_keys
from headstart.prompt.text_encoder import encoder_of
from headstart.prompt.token_cache import PromptMemo, TokenCache, memo_key, tail_of
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from token_vocabularies import LLAMA3_TEMPLATE, VOCABULARIES, llama3_like, write_model_folder

ROOT = block_root("", "")
SIZES = (4, 16)


def naive(backend, text, root=ROOT, adds_special=False):
    """Tokenise whole, hash whole."""
    ids = backend.encode(text, add_special_tokens=adds_special).ids
    return TokenPrompt(len(ids), {size: block_keys(ids, size, root) for size in SIZES})


class CountingEncoder:
    """Passes on, and counts the pieces that were tokenised."""

    def __init__(self, encoder):
        self.inner = encoder
        self.cut = encoder.cut
        self.first_ids = encoder.first_ids
        self.last_ids = encoder.last_ids
        self.num_pieces = 0

    def encode(self, pieces):
        self.num_pieces += len(pieces)
        return self.inner.encode(pieces)


WORDS = st.sampled_from(
    ["Hello", " there", "\n\n", "naïve 你好 ", "1234567", " ", "", "x<|eot_id|>"]
)
TURNS = st.tuples(
    st.sampled_from(["<|eot_id|>", "<s>", "[INST]", "<plain>", "<|start_header_id|>", "word"]),
    st.lists(WORDS, max_size=4).map("".join),
).map("".join)
CONVERSATIONS = st.lists(
    st.tuples(st.lists(TURNS, max_size=6).map("".join), st.sampled_from("ab"), st.booleans()),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module", params=sorted(VOCABULARIES))
def backend(request):
    return VOCABULARIES[request.param]()


@settings(max_examples=40)
@given(prompts=CONVERSATIONS, max_bytes=st.sampled_from([0, 3000, 20_000, 1_000_000]))
def test_a_prompt_has_the_same_keys_whatever_was_seen_before(backend, prompts, max_bytes):
    """Any vocabulary, any order of prompts, salts and special tokens, any bound."""
    cache = TokenCache(encoder_of(backend), max_bytes)
    said = ""
    for text, salt, adds_special in [*prompts, *prompts]:
        said = text if adds_special else said + text
        root = block_root("", salt)
        found = cache.prompt(said, root=root, block_sizes=SIZES, adds_special=adds_special)
        assert found == naive(backend, said, root, adds_special)
        cache.check_integrity()


def test_a_conversation_that_goes_on_tokenises_what_is_new():
    """Old pieces are walked over, whatever the salt of the request."""
    backend = llama3_like()
    encoder = CountingEncoder(encoder_of(backend))
    cache = TokenCache(encoder)
    template = ChatTemplate(LLAMA3_TEMPLATE, bos_token="<|begin_of_text|>")
    messages = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"question {turn}"})
        text = template.render(messages)
        before = encoder.num_pieces
        assert cache.prompt(text, root=ROOT, block_sizes=SIZES) == naive(backend, text)
        # A header, its end with the text behind it, and the end of the turn; the same words or
        # marks of another turn are known.
        assert encoder.num_pieces - before <= (6 if turn == 0 else 3)
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    before = encoder.num_pieces
    other = block_root("", "other")
    assert cache.prompt(text, root=other, block_sizes=SIZES) == naive(backend, text, other)
    assert encoder.num_pieces == before


def test_another_set_of_block_sizes_is_another_path():
    """A replica with other blocks has joined."""
    backend = llama3_like()
    cache = TokenCache(encoder_of(backend))
    text = "<|eot_id|>Hello there" * 5
    assert list(cache.prompt(text, root=ROOT, block_sizes=(4,)).keys_by_block_size) == [4]
    assert cache.prompt(text, root=ROOT, block_sizes=SIZES) == naive(backend, text)


def test_no_text_has_no_tokens():
    """Nor keys."""
    cache = TokenCache(encoder_of(llama3_like()))
    assert cache.prompt("", root=ROOT, block_sizes=(4,)) == TokenPrompt(0, {4: []})


def real_bodies(test_data):
    """Conversations with tools that grow, and system prompts of public agents."""
    folder = test_data / "data"
    tools = json.loads((folder / "sessions" / "airline_tools.json").read_text())
    with gzip.open(folder / "sessions" / "tau_airline.sessions.jsonl.gz", "rt") as lines:
        sessions = [json.loads(line) for _, line in zip(range(2), lines, strict=False)]
    for session in sessions:
        messages = session["messages"]
        for end in range(2, len(messages), 4):
            yield {"messages": messages[:end], "tools": tools}
    for path in sorted((folder / "prompts").glob("*.*")):
        system = {"role": "system", "content": path.read_text()}
        yield {"messages": [system, {"role": "user", "content": "Begin."}]}


def check_real_prompts(tokenizer, test_data):
    now = datetime(2026, 11, 30)
    for body in real_bodies(test_data):
        ids = tokenizer.token_ids(body, is_chat=True, now=now)
        found = tokenizer.prompt(body, is_chat=True, now=now, root=ROOT, block_sizes=SIZES)
        assert found.num_tokens == len(ids) > 100
        for size in SIZES:
            assert found.keys_by_block_size[size] == block_keys(ids, size, ROOT)


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_real_prompts_have_the_tokens_of_the_whole(name, test_data, tmp_path):
    """Agents' prompts and sessions with tools, under vocabularies of every kind."""
    folder = write_model_folder(
        tmp_path, VOCABULARIES[name](), LLAMA3_TEMPLATE, bos_token="<|begin_of_text|>"
    )
    check_real_prompts(load_tokenizer(TokenizerConfig(str(folder)), "vllm"), test_data)


@pytest.mark.parametrize("dialect", ["vllm", "embedded"])
def test_real_prompts_have_the_tokens_of_the_whole_under_a_real_vocabulary(
    dialect, test_data, real_model
):
    """SmolLM2's, out of its file."""
    assert load_gguf(real_model).chat_template
    check_real_prompts(load_tokenizer(TokenizerConfig(str(real_model)), dialect), test_data)


PARTS = st.lists(st.binary(max_size=300), max_size=6)


@given(parts=PARTS)
def test_a_tail_is_what_no_block_holds(parts):
    """Over as many parts as it takes."""
    prompt = prompt_keys(parts, namespace("m"))
    whole = b"".join(parts)
    assert tail_of(parts, prompt) == whole[prompt.ends[-1] if prompt.ends else 0 :]


def test_fields_that_end_a_prompt_otherwise_make_another_key():
    """And are not taken for its last bytes."""
    prompt = prompt_keys([b"x" * 200], namespace("m"))
    keys = {memo_key(prompt, b"ab"), memo_key(prompt, b"b", b"a"), memo_key(prompt, b"", b"ab")}
    assert len(keys) == 3


@given(parts=PARTS, other=PARTS)
def test_prompts_have_one_key_exactly_if_they_are_one(parts, other):
    """Of the same parts; a prompt without a block has none."""

    def key(parts):
        prompt = prompt_keys(parts, namespace("m"))
        return memo_key(prompt, tail_of(parts, prompt))

    assert key(parts) == key(list(parts))
    if key(parts) is None:
        assert sum(map(len, parts)) < 128
    elif b"".join(parts) != b"".join(other):
        assert key(parts) != key(other)


def test_a_memo_tells_unknown_tokens_from_a_prompt_never_seen():
    """And forgets when it is full."""
    memo = PromptMemo(2000)
    known = TokenPrompt(3, {4: []})
    memo.put(b"known", known)
    memo.put(b"unknown", None)
    assert memo.get(b"known") == (known,)
    assert memo.get(b"unknown") == (None,)
    assert memo.get(b"never") is None
    for index in range(20):
        memo.put(bytes([index]), known)
    assert memo.get(b"known") is None
    assert memo.statistics().num_bytes <= 2000
    memo.clear()
    assert memo.statistics().num_entries == 0

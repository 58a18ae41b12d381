"""Tokens made beside the event loop."""

import asyncio
import json
import threading
from datetime import datetime

import pytest

from headstart.clock import SystemClock, VirtualClock
from headstart.engines.tokenizers.config import TokenisingConfig, TokenizerConfig
from headstart.engines.tokenizers.load import load_tokenizer
from headstart.gateway.tokenising import Tokenising
from headstart.prompt.fingerprint import namespace, prompt_keys
from headstart.prompt.token_keys import TokenPrompt, block_keys, block_root
from loopback import eventually

SIZES = frozenset({16})


def chat(text, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": text * 200}], **fields}
    return json.dumps(body).encode()


def key_of(service, body, model="m", salt=""):
    prompt = prompt_keys([body], namespace(model, salt))
    tail = body[prompt.ends[-1] :]
    return service.key_of(model, prompt, tail)


class Request:
    """One request's way through the service."""

    def __init__(self, service, body, model="m", salt=""):
        self.heard = []
        self.key = key_of(service, body, model, salt)
        self.found = service.lookup(self.key)
        self.ticket = None
        if self.found is None:
            self.ticket = service.submit(
                self.key, model, body, self.heard.append, is_chat=True, cache_salt=salt
            )


class HeldTokenizer:
    """Waits for leave, in the worker's thread; then counts the body's letters."""

    reads_clock = False

    def __init__(self):
        self.go_on = threading.Event()
        self.asked = []
        self.fault = None

    def prompt(self, body, **options):
        self.asked.append(body)
        assert self.go_on.wait(60)
        if self.fault is not None:
            raise self.fault
        if body["messages"][0]["role"] == "unknown":
            return None
        return TokenPrompt(len(json.dumps(body)), {})

    def statistics(self):
        return {}


@pytest.fixture
async def service():
    """Any number of services, closed in the end."""
    made = []

    def make(tokenizer, clock=None, **config):
        config.setdefault("deadline_s", 60.0)
        each = Tokenising(TokenisingConfig(**config), clock or SystemClock())
        each.add_model("m", tokenizer)
        each.set_block_sizes("m", SIZES)
        made.append((each, tokenizer))
        return each

    yield make
    for each, tokenizer in made:
        if isinstance(tokenizer, HeldTokenizer):
            tokenizer.go_on.set()
        await each.close()


@pytest.fixture
def tokenizer(tiny_gguf):
    return load_tokenizer(TokenizerConfig(str(tiny_gguf)), "vllm")


async def test_a_prompt_is_tokenised_once(service, tokenizer):
    """The second time it is known at once."""
    tokens = service(tokenizer)
    body = chat("the thing ")
    first = Request(tokens, body)
    await eventually(lambda: first.heard)
    ids = tokenizer.token_ids(json.loads(body), is_chat=True, now=datetime(2026, 1, 1))
    expected = TokenPrompt(len(ids), {16: block_keys(ids, 16, block_root("", ""))})
    assert first.heard == [expected]
    assert Request(tokens, body).found == (expected,)
    assert tokens.statistics().num_tokenised == 1


async def test_keys_have_the_adapter_and_the_salt(service, tokenizer):
    """As the engine's blocks have; an adapter is tokenised as its base."""
    tokens = service(tokenizer)
    tokens.add_model("tuned", tokenizer, "tuned")
    tokens.set_block_sizes("tuned", SIZES)
    salted, tuned = Request(tokens, chat("a "), salt="s"), Request(tokens, chat("a "), "tuned")
    await eventually(lambda: salted.heard and tuned.heard)
    ids = tokenizer.token_ids(json.loads(chat("a ")), is_chat=True, now=datetime(2026, 1, 1))
    for request, root in ((salted, block_root("", "s")), (tuned, block_root("tuned", ""))):
        assert request.heard[0].keys_by_block_size[16] == block_keys(ids, 16, root)


async def test_only_models_of_replicas_that_tell_need_tokens(service, tokenizer):
    """For all others nothing of this is asked."""
    tokens = service(tokenizer)
    assert tokens.needs_tokens("m")
    assert not tokens.needs_tokens("other")
    tokens.set_block_sizes("other", SIZES)
    assert not tokens.needs_tokens("other")
    tokens.set_block_sizes("m", frozenset())
    assert not tokens.needs_tokens("m")
    tokens.set_block_sizes("m", SIZES)
    tokens.remove_model("m")
    assert not tokens.needs_tokens("m")


async def test_a_request_waits_no_longer_than_its_deadline(service):
    """It hears None; the tokens are remembered when they come."""
    held = HeldTokenizer()
    tokens = service(held, deadline_s=0.01)
    late = Request(tokens, chat("a "))
    await eventually(lambda: late.heard)
    assert late.heard == [None]
    assert tokens.statistics().num_late == 1
    held.go_on.set()
    await eventually(lambda: tokens.lookup(late.key))
    assert late.heard == [None]


async def test_requests_of_one_prompt_share_its_tokens(service):
    """A burst of siblings is tokenised once, and one that leaves takes nothing from the others."""
    held = HeldTokenizer()
    tokens = service(held)
    requests = [Request(tokens, chat("a ")) for _ in range(5)]
    requests[0].ticket.cancel()
    held.go_on.set()
    await eventually(lambda: requests[4].heard)
    assert [len(request.heard) for request in requests] == [0, 1, 1, 1, 1]
    assert len(held.asked) == 1


async def test_work_that_nobody_wants_is_left_out(service):
    """Unless it has begun; a later request for it begins anew."""
    held = HeldTokenizer()
    tokens = service(held)
    first, left = Request(tokens, chat("a ")), Request(tokens, chat("b "))
    await eventually(lambda: held.asked)
    left.ticket.cancel()
    again = Request(tokens, chat("b "))
    also_left = Request(tokens, chat("c "))
    also_left.ticket.cancel()
    held.go_on.set()
    await eventually(lambda: first.heard and again.heard)
    await eventually(lambda: tokens.statistics().num_waiting == 0)
    assert left.heard == also_left.heard == []
    assert [body["messages"][0]["content"][0] for body in held.asked] == ["a", "b"]
    assert tokens.statistics().waiting_bytes == 0


async def test_bodies_that_wait_are_bounded(service):
    """One more is not taken, and its request does not wait."""
    held = HeldTokenizer()
    body = chat("a ")
    tokens = service(held, max_waiting_bytes=2 * len(body))
    assert Request(tokens, body).ticket is not None
    assert Request(tokens, chat("b ")).ticket is not None
    refused = Request(tokens, chat("c "))
    assert refused.ticket is None
    assert tokens.statistics().num_refused == 1
    held.go_on.set()
    await eventually(lambda: tokens.statistics().num_waiting == 0)
    assert Request(tokens, chat("c ")).ticket is not None


async def test_a_request_does_not_wait_for_what_cannot_come_in_time(service):
    """By the bytes before it; its tokens are made all the same."""
    held = HeldTokenizer()
    tokens = service(held, deadline_s=0.0001)
    request = Request(tokens, chat("a "))
    assert request.ticket is None
    held.go_on.set()
    await eventually(lambda: tokens.lookup(request.key))
    assert request.heard == []
    assert tokens.statistics().num_late == 1


async def test_unknown_tokens_are_remembered_as_such(service):
    """They are not asked for again."""
    held = HeldTokenizer()
    held.go_on.set()
    tokens = service(held)
    body = json.dumps({"messages": [{"role": "unknown", "content": "a" * 300}]}).encode()
    request = Request(tokens, body)
    await eventually(lambda: request.heard)
    assert request.heard == [None]
    assert Request(tokens, body).found == (None,)
    assert tokens.statistics().num_unknown == 1


async def test_a_fault_costs_one_prompt_its_tokens(service, caplog):
    """The log has its kind, and nothing of the prompt."""
    held = HeldTokenizer()
    held.go_on.set()
    held.fault = RuntimeError("very secret")
    tokens = service(held)
    broken = Request(tokens, chat("a "))
    await eventually(lambda: broken.heard)
    assert broken.heard == [None]
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    held.fault = None
    whole = Request(tokens, chat("b "))
    await eventually(lambda: whole.heard)
    assert whole.heard != [None]


async def test_a_body_that_is_no_json_has_no_tokens(service, tokenizer):
    """Its engine says so."""
    request = Request(service(tokenizer), b"[" * 400)
    await eventually(lambda: request.heard)
    assert request.heard == [None]


async def test_a_prompt_without_a_block_has_no_key(service, tokenizer):
    """It is too short to matter."""
    tokens = service(tokenizer)
    assert tokens.key_of("m", prompt_keys([b"short"], namespace("m")), b"short") is None


async def test_new_block_sizes_make_all_prompts_new(service, tokenizer):
    """What was on its way meanwhile is told, but not remembered."""
    held = HeldTokenizer()
    tokens = service(held)
    request = Request(tokens, chat("a "))
    await eventually(lambda: held.asked)
    tokens.set_block_sizes("m", frozenset({32}))
    held.go_on.set()
    await eventually(lambda: request.heard)
    assert tokens.lookup(request.key) is None


async def test_a_template_that_asks_for_the_time_makes_prompts_new_each_minute(
    service, tiny_gguf, tmp_path
):
    """The text is another one."""
    file = tmp_path / "clock.jinja"
    file.write_text("{{ strftime_now('%H:%M') }}" * 20)
    asking = load_tokenizer(TokenizerConfig(str(tiny_gguf), chat_template=str(file)), "vllm")
    clock = VirtualClock(epoch_s=600.0)
    tokens = service(asking, clock)
    body = chat("a ")
    first = Request(tokens, body)
    await eventually(lambda: first.heard)
    clock.advance(59.0)
    assert Request(tokens, body).found is not None
    clock.advance(1.0)
    second = Request(tokens, body)
    assert second.found is None
    await eventually(lambda: second.heard)
    assert second.heard[0].keys_by_block_size != first.heard[0].keys_by_block_size


async def test_a_close_lets_nobody_wait(service):
    """And ends the thread."""
    held = HeldTokenizer()
    tokens = service(held)
    running, waiting = Request(tokens, chat("a ")), Request(tokens, chat("b "))
    await eventually(lambda: held.asked)
    closing = asyncio.get_running_loop().create_task(tokens.close())
    await eventually(lambda: running.heard and waiting.heard)
    held.go_on.set()
    await closing
    assert running.heard == waiting.heard == [None]
    assert len(held.asked) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "tokens"]

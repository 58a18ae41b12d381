"""The engine from outside: requests in, tokens out, and what happens when things go wrong."""

import queue
import threading
from contextlib import contextmanager

import pytest
from reference_model import reference_logits

from headstart.engines.embedded.engine import EmbeddedEngine, EngineConfig
from headstart.engines.embedded.gguf import load_gguf
from headstart.engines.embedded.request import GenerationRequest, SamplingParams
from headstart.errors import BadRequest, ContextOverflow, Overloaded, UpstreamUnavailable
from headstart.kv.events import AllBlocksCleared, BlockRemoved, BlockStored

TEXT = "the user and the other thing are in the town so the thing is there and then "
TIMEOUT_S = 60


class Collector:
    """A callback that a test can wait for."""

    def __init__(self):
        self.outputs = []
        self._queue = queue.Queue()

    def __call__(self, output):
        self.outputs.append(output)
        self._queue.put(output)

    def next(self):
        return self._queue.get(timeout=TIMEOUT_S)

    def wait(self):
        """The last output."""
        while (output := self.next()).finish_reason is None:
            pass
        return output

    @property
    def text(self):
        return "".join(output.text for output in self.outputs)

    @property
    def token_ids(self):
        return [token for output in self.outputs for token in output.token_ids]


@pytest.fixture
def make_engine(tiny_gguf):
    """Start engines on the tiny model; they are stopped at the end."""
    engines = []

    def make(**config):
        engine = EmbeddedEngine(EngineConfig(tiny_gguf, "tiny", **{"num_blocks": 128, **config}))
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.stop()


def submit(engine, prompt, request_id="r", salt=None, **sampling):
    sampling = {"max_tokens": 8, "ignore_eos": True, **sampling}
    token_ids = tuple(engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
    collector = Collector()
    request = GenerationRequest(request_id, token_ids, SamplingParams(**sampling), salt)
    engine.submit(request, collector)
    return collector


@contextmanager
def paused(engine):
    """Hold the engine's thread between two steps, so that what a test submits meets in one."""
    go_on = threading.Event()
    with engine._changed:
        engine._inbox.append(lambda: go_on.wait(TIMEOUT_S))
        engine._changed.notify()
    try:
        yield
    finally:
        go_on.set()


def generate(engine, prompt, **options):
    collector = submit(engine, prompt, **options)
    collector.wait()
    return collector


def test_greedy_tokens_are_the_reference_s(make_engine, tiny_gguf):
    """Token for token what a plain forward pass over the whole text chooses."""
    engine = make_engine()
    tokens = engine.tokenizer.encode(TEXT)
    generated = generate(engine, TEXT).token_ids
    for token in generated:
        assert token == reference_logits(load_gguf(tiny_gguf), tokens)[-1].argmax()
        tokens.append(token)
    assert len(generated) == 8


def test_the_second_request_reuses_the_first_s_prefix_and_says_the_same(make_engine):
    """`cached_tokens` is whole blocks short of the last token; the output does not change."""
    engine = make_engine()
    cold, warm = (generate(engine, TEXT * 3) for _ in range(2))
    num_prompt = cold.outputs[-1].num_prompt_tokens
    assert cold.outputs[-1].cached_tokens == 0
    assert warm.outputs[-1].cached_tokens == (num_prompt - 1) // 16 * 16
    assert warm.token_ids == cold.token_ids
    statistics = engine.statistics()
    assert statistics.prefix_cache_queries_tokens == 2 * num_prompt
    assert statistics.prefix_cache_hits_tokens == warm.outputs[-1].cached_tokens
    assert statistics.prompt_tokens == 2 * num_prompt
    assert statistics.generation_tokens == 16
    assert statistics.num_running == statistics.num_waiting == 0
    assert statistics.kv_usage_ratio == 0


def test_another_salt_and_caching_off_reuse_nothing(make_engine):
    """Isolation and the switch both show in `cached_tokens`."""
    engine = make_engine()
    outputs = [generate(engine, TEXT, salt=salt).outputs[-1] for salt in (None, "a", "b", "a")]
    assert [output.cached_tokens > 0 for output in outputs] == [False, False, False, True]
    off = make_engine(enable_prefix_caching=False)
    assert [generate(off, TEXT).outputs[-1].cached_tokens for _ in range(2)] == [0, 0]


def test_eight_cold_requests_on_one_prefix_prefill_it_once(make_engine):
    """The number of prefilled tokens proves it; the outputs are those of a run alone."""
    engine = make_engine(max_num_batched_tokens=64)
    prompts = [TEXT * 4 + f"{i} and" for i in range(8)]
    with paused(engine):
        together = [submit(engine, prompt, request_id=str(i)) for i, prompt in enumerate(prompts)]
    last = [collector.wait() for collector in together]
    lengths = [output.num_prompt_tokens for output in last]
    shared = len(engine.tokenizer.encode(TEXT * 4)) // 16 * 16
    assert engine.statistics().prefilled_tokens == sum(lengths) - 7 * shared
    alone = make_engine(enable_prefix_caching=False)
    for prompt, collector in zip(prompts, together, strict=True):
        assert generate(alone, prompt).token_ids == collector.token_ids


def test_when_the_pool_runs_out_everybody_still_finishes_with_the_same_text(make_engine):
    """Preemption by recomputation changes no token."""
    engine = make_engine(num_blocks=12)
    prompts = [f"{i} {TEXT}" for i in range(4)]
    with paused(engine):
        together = [
            submit(engine, p, request_id=str(i), max_tokens=60) for i, p in enumerate(prompts)
        ]
    for collector in together:
        assert collector.wait().finish_reason == "length"
    assert engine.statistics().preemptions > 0
    roomy = make_engine(num_blocks=64)
    for prompt, collector in zip(prompts, together, strict=True):
        assert generate(roomy, prompt, max_tokens=60).token_ids == collector.token_ids


def test_a_seed_gives_the_same_tokens_alone_and_in_company(make_engine):
    """Sampling depends on the request alone."""
    engine = make_engine()
    options = {"temperature": 1.5, "top_p": 0.95, "seed": 11}
    alone = generate(engine, TEXT, **options).token_ids
    others = [submit(engine, TEXT + str(i), request_id=f"o{i}", temperature=1.0) for i in range(3)]
    assert generate(engine, TEXT, **options).token_ids == alone
    for other in others:
        other.wait()


def test_generation_ends_at_an_end_token_unless_ignored(make_engine):
    """The end token is counted but is no text; `ignore_eos` goes on."""
    engine = make_engine()
    # Any token may be an end token; make the first one that greedy decoding chooses one.
    first = generate(engine, TEXT).token_ids[0]
    engine.eos_token_ids = frozenset({first})
    ended = generate(engine, TEXT, ignore_eos=False)
    assert ended.outputs[-1].finish_reason == "stop"
    assert (ended.token_ids, ended.text) == ([first], "")
    assert generate(engine, TEXT).outputs[-1].finish_reason == "length"


def test_generation_ends_before_a_stop_string(make_engine):
    """No part of the stop string is ever in the text."""
    engine = make_engine()
    whole = generate(engine, TEXT, max_tokens=24).text
    stop = whole[5:9]
    stopped = generate(engine, TEXT, max_tokens=24, stop=(stop, "never"))
    assert stopped.outputs[-1].finish_reason == "stop"
    assert stopped.text == whole[: whole.index(stop)]


def test_the_text_is_that_of_the_tokens(make_engine):
    """Streamed pieces add up to what decoding all tokens gives."""
    engine = make_engine()
    collector = generate(engine, TEXT, max_tokens=40, temperature=2.0, seed=3)
    assert collector.text == engine.tokenizer.decode(collector.token_ids)
    assert [o.num_output_tokens for o in collector.outputs] == list(range(1, 41))


def test_abort_ends_a_request_and_frees_its_blocks(make_engine):
    """Whether it runs or waits; its callback is told once."""
    engine = make_engine(max_num_seqs=1)
    running = submit(engine, TEXT, request_id="a", max_tokens=900)
    waiting = submit(engine, TEXT, request_id="b", max_tokens=900)
    running.next()
    with paused(engine):
        for name in ("b", "a", "unknown", "a"):
            engine.abort(name)
    assert running.wait().finish_reason == waiting.wait().finish_reason == "abort"
    assert waiting.outputs[-1].num_output_tokens == 0
    assert generate(engine, TEXT).outputs[-1].finish_reason == "length"
    assert engine.statistics().kv_usage_ratio == 0
    assert not engine._open
    assert not engine._generations


def test_when_a_leader_is_aborted_its_followers_finish(make_engine):
    """Nobody waits for blocks that nobody computes."""
    engine = make_engine(max_num_batched_tokens=16)
    prompts = [TEXT * 8 + str(i) for i in range(3)]
    with paused(engine):
        leader, *followers = [submit(engine, p, request_id=str(i)) for i, p in enumerate(prompts)]
    while engine.statistics().prefilled_tokens == 0:  # the leader is under way
        pass
    engine.abort("0")
    leader.wait()
    assert [f.wait().finish_reason for f in followers] == ["length", "length"]


def test_what_does_not_fit_is_refused_with_the_numbers(make_engine):
    """Context overflow names the context, the prompt and the output."""
    engine = make_engine()
    with pytest.raises(ContextOverflow, match=r"1024 tokens; 1025 .*\(1000 in .*, 25 to"):
        submit(engine, [5] * 1000, max_tokens=25)
    assert engine.context_length == 1024
    assert make_engine(num_blocks=8).context_length == 128


@pytest.mark.parametrize(
    ("prompt", "sampling", "named"),
    [
        ([], {}, "no tokens"),
        ([279], {}, "279"),
        ([-1], {}, "-1"),
        ([5], {"temperature": -1.0}, "temperature is -1.0"),
        ([5], {"temperature": float("nan")}, "temperature is nan"),
        ([5], {"top_p": 0.0}, "top_p is 0.0"),
        ([5], {"top_k": -1}, "top_k is -1"),
        ([5], {"max_tokens": 0}, "max_tokens is 0"),
        ([5], {"stop": ("a", "")}, "stop string"),
    ],
)
def test_bad_requests_are_refused_before_they_cost_anything(make_engine, prompt, sampling, named):
    """The value is named."""
    with pytest.raises(BadRequest, match=named):
        submit(make_engine(), prompt, **sampling)


def test_an_id_in_use_and_a_full_queue_are_refused(make_engine):
    """Both are the caller's to repair; neither harms those who run."""
    engine = make_engine(max_num_seqs=1, max_num_waiting=1)
    with paused(engine):
        first = submit(engine, TEXT, request_id="a")
        with pytest.raises(BadRequest, match="'a' is in use"):
            submit(engine, TEXT, request_id="a")
        second = submit(engine, TEXT, request_id="b")
        with pytest.raises(Overloaded):
            submit(engine, TEXT, request_id="c")
    assert (first.wait().finish_reason, second.wait().finish_reason) == ("length", "length")


def test_one_request_s_failure_ends_that_request_only(make_engine):
    """A batch that cannot be computed is computed one by one; nothing wrong is cached."""
    engine = make_engine()
    good_forward = engine._backend.forward

    def forward(batch):
        if any(7 in step.token_ids for step in batch):
            raise ZeroDivisionError
        return good_forward(batch)

    engine._backend.forward = forward
    expected = generate(engine, TEXT, request_id="x").token_ids
    bad_prompt = [*engine.tokenizer.encode(TEXT), *[8] * 20, 7]
    with paused(engine):
        good = submit(engine, TEXT, request_id="g")
        bad = submit(engine, bad_prompt, request_id="b")
    failed = bad.wait()
    assert failed.finish_reason == "abort"
    assert "ZeroDivisionError" in failed.error
    assert good.wait().error is None
    assert good.token_ids == expected
    engine._backend.forward = good_forward
    assert generate(engine, bad_prompt).outputs[-1].cached_tokens <= len(bad_prompt) - 21


def test_a_callback_that_raises_ends_its_own_request(make_engine):
    """The consumer is gone; the others go on."""
    engine = make_engine()

    def broken(output):
        raise RuntimeError

    request = GenerationRequest("bad", (5, 6), SamplingParams(max_tokens=1000))
    engine.submit(request, broken)
    assert generate(engine, TEXT).outputs[-1].finish_reason == "length"
    assert "bad" not in engine._open


def test_if_the_thread_dies_everybody_gets_an_error(make_engine):
    """Open requests end with the reason; new ones are refused."""
    engine = make_engine()

    def schedule():
        raise RuntimeError("broken scheduler")

    engine._scheduler.schedule = schedule
    last = submit(engine, TEXT).wait()
    assert last.finish_reason == "abort"
    assert "RuntimeError" in last.error
    engine._thread.join(TIMEOUT_S)
    with pytest.raises(UpstreamUnavailable):
        submit(engine, TEXT)
    with pytest.raises(UpstreamUnavailable):
        engine.reset_prefix_cache()


def test_stop_ends_open_requests_with_an_error(make_engine):
    """Nobody is left waiting; stopping twice is harmless."""
    engine = make_engine()
    collector = submit(engine, TEXT, max_tokens=900)
    collector.next()
    engine.stop()
    engine.stop()
    assert "stopped" in collector.wait().error
    with pytest.raises(UpstreamUnavailable):
        submit(engine, TEXT)


def test_reset_forgets_all_prefixes_unless_requests_are_open(make_engine):
    """After a reset the same prompt is cold again, and subscribers are told."""
    engine = make_engine()
    events = queue.Queue()
    engine.on_kv_events = lambda batch: [events.put(event) for event in batch]
    generate(engine, TEXT)
    with paused(engine):
        running = submit(engine, TEXT, request_id="open")
        assert not engine.reset_prefix_cache()
    running.wait()
    assert engine.reset_prefix_cache()
    while not isinstance(events.get(timeout=TIMEOUT_S), AllBlocksCleared):
        pass
    assert generate(engine, TEXT).outputs[-1].cached_tokens == 0


def test_kv_events_rebuild_what_is_cached(make_engine):
    """Applied in order they give exactly the blocks that can be found; removals come first."""
    engine = make_engine(num_blocks=8, namespace="n")
    batches = queue.Queue()
    engine.on_kv_events = batches.put
    for i in range(3):
        generate(engine, f"{i} {TEXT}", salt="s")
    engine.stop()
    known, kinds = set(), set()
    while not batches.empty():
        for event in batches.get():
            kinds.add(type(event))
            if isinstance(event, BlockStored):
                assert event.cache_salt == "s"
                assert event.parent_block_hash is None or event.parent_block_hash in known
                known |= set(event.block_hashes)
            else:
                known -= set(event.block_hashes)
    assert kinds == {BlockStored, BlockRemoved}
    assert known == set(engine._pool._cached)
    assert engine.statistics().evicted_blocks > 0


def test_equal_engines_publish_equal_hashes(make_engine):
    """Another replica of the same model names the same prefix alike."""

    def stored():
        engine, batches = make_engine(), queue.Queue()
        engine.on_kv_events = batches.put
        generate(engine, TEXT)
        return batches.get(timeout=TIMEOUT_S)

    assert stored() == stored()


def test_timings_of_a_finished_request_add_up(make_engine):
    """Queue, prefill and decode are parts of the whole; aborted requests report too."""
    engine = make_engine(max_num_seqs=1)
    finished = queue.Queue()
    engine.on_finished = finished.put
    with paused(engine):
        long = submit(engine, TEXT, request_id="long", max_tokens=20)
        waiting = submit(engine, TEXT, request_id="waiting")
        engine.abort("waiting")
    long.wait()
    waiting.wait()
    facts = {fact.request_id: fact for fact in (finished.get(timeout=TIMEOUT_S) for _ in "ab")}
    fact = facts["long"]
    assert fact.num_output_tokens == 20
    assert fact.ttft_s == pytest.approx(fact.queue_s + fact.prefill_s)
    assert len(fact.inter_token_s) == 19
    assert sum(fact.inter_token_s) == pytest.approx(fact.decode_s)
    assert fact.e2e_s >= fact.ttft_s + fact.decode_s
    aborted = facts["waiting"]
    assert (aborted.finish_reason, aborted.ttft_s, aborted.decode_s) == ("abort", None, None)


def test_statistics_of_a_running_engine_show_who_runs_and_waits(make_engine):
    """Gauges are of the last step."""
    engine = make_engine(max_num_seqs=1)
    with paused(engine):
        running = submit(engine, TEXT, request_id="a", max_tokens=900)
        submit(engine, TEXT, request_id="b")
    for _ in range(2):
        running.next()
    statistics = engine.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (1, 1)
    assert 0 < statistics.kv_usage_ratio < 1
    assert (statistics.num_blocks, statistics.block_size) == (128, 16)


def test_with_caching_off_no_look_up_is_counted(make_engine):
    """As with vLLM, the hit ratio of an engine without a cache is 0 / 0, not 0."""
    engine = make_engine(enable_prefix_caching=False)
    generate(engine, TEXT)
    assert engine.statistics().prefix_cache_queries_tokens == 0


def test_cached_prompt_tokens_are_counted_with_the_prompt_they_belong_to(make_engine):
    """A request that ends before its first token adds to neither, though it was looked up."""
    engine = make_engine()
    warm = [generate(engine, TEXT).outputs[-1] for _ in range(2)][-1]
    before = engine.statistics()
    assert before.cached_prompt_tokens == warm.cached_tokens > 0

    def forward(batch):
        raise ZeroDivisionError

    engine._backend.forward = forward
    assert submit(engine, TEXT).wait().error is not None
    after = engine.statistics()
    assert after.prefix_cache_hits_tokens > before.prefix_cache_hits_tokens
    assert after.cached_prompt_tokens == before.cached_prompt_tokens
    assert after.prompt_tokens == before.prompt_tokens


def test_the_log_never_has_the_text_of_an_error(make_engine, caplog):
    """An error's text may quote a prompt; its type and place are logged."""
    engine = make_engine()
    text = "the secret phrase"

    def fail(*_):
        raise KeyError(text)

    engine._backend.forward = fail
    submit(engine, TEXT).wait()
    engine._scheduler.schedule = fail
    submit(engine, TEXT).wait()
    engine._thread.join(TIMEOUT_S)
    assert caplog.text.count(": KeyError\n") == 2
    assert "in fail" in caplog.text
    assert text not in caplog.text


def test_the_figures_of_an_engine_whose_thread_died_show_nobody_running(make_engine):
    """What was open has ended with an error, and is reported as ended."""
    engine = make_engine()
    finished = queue.Queue()
    engine.on_finished = finished.put
    assert engine.is_running
    running = submit(engine, TEXT, max_tokens=900)
    running.next()

    def schedule():
        raise RuntimeError

    engine._scheduler.schedule = schedule
    running.wait()
    engine._thread.join(TIMEOUT_S)
    assert not engine.is_running
    statistics = engine.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (0, 0)
    assert statistics.kv_usage_ratio == 0
    assert "RuntimeError" in finished.get(timeout=TIMEOUT_S).error

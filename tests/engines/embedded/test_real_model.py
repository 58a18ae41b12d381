"""SmolLM2-135M itself: it makes sense, and the cache does not change what it says."""

import gzip

import pytest
from test_engine import Collector

from headstart.engines.embedded.engine import EmbeddedEngine, EngineConfig
from headstart.engines.embedded.request import GenerationRequest, SamplingParams

NUM_PROMPTS, NUM_TOKENS = 50, 32


def generate(engine, requests):
    """Run token lists together; returns the collectors in order."""
    collectors = []
    for name, token_ids in requests:
        collectors.append(Collector())
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        request = GenerationRequest(name, tuple(token_ids), params)
        engine.submit(request, collectors[-1])
    for collector in collectors:
        assert collector.wait().error is None
    return collectors


@pytest.fixture
def make_engine(real_model):
    engines = []

    def make(**config):
        engine = EmbeddedEngine(EngineConfig(real_model, "smollm2", num_blocks=512, **config))
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.stop()


def test_it_answers_in_english(make_engine):
    """Weights, rotary order, tokenizer and template are all right, or this is gibberish."""
    engine = make_engine()
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    (collector,) = generate(engine, [("r", engine.tokenizer.encode(prompt))])
    assert collector.text.startswith("The capital of France is Paris.")


def test_its_tokens_are_those_of_its_vocabulary(make_engine):
    """Known ids of SmolLM2's tokenizer: digits one by one, spaces with the word behind them."""
    tokenizer = make_engine().tokenizer
    assert tokenizer.encode("Hello world 2024") == [19556, 905, 216, 34, 32, 34, 36]
    text = "naïve 漢字 😀\n\n\tif x:  pass"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.timeout(600)
def test_greedy_output_is_the_same_with_and_without_the_cache(make_engine, test_data):
    """50 prompts over a tree of shared prefixes, 32 tokens each: equal token for token."""
    text = gzip.decompress((test_data / "data/longdocs/shakespeare.txt.gz").read_bytes()).decode()
    off, on = make_engine(enable_prefix_caching=False), make_engine()
    tokens = on.tokenizer.encode(text[200_000:220_000])
    prompts = [
        (str(i), [*tokens[: 40 * (i % 5 + 1)], *tokens[1000 + 20 * i :][: 10 + i % 7]])
        for i in range(NUM_PROMPTS)
    ]
    cold = [c for n in range(0, NUM_PROMPTS, 10) for c in generate(off, prompts[n : n + 10])]
    warm = [c for n in range(0, NUM_PROMPTS, 5) for c in generate(on, prompts[n : n + 5])]
    assert [c.token_ids for c in warm] == [c.token_ids for c in cold]
    assert on.statistics().prefix_cache_hits_tokens > 3000

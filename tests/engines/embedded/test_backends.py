"""The backends' arithmetic against a plain reference, however a prompt is cut and batched."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_model import reference_logits

from headstart.engines.embedded.backend import SequenceStep
from headstart.engines.embedded.gguf import load_gguf
from headstart.engines.embedded.numpy_backend import NumpyBackend
from tiny_model import TinyShape, write_tiny_gguf

BLOCK, NUM_BLOCKS = 4, 256
PROMPT = [1, *np.random.default_rng(1).integers(3, 279, 299).tolist()]
TOLERANCE = 2e-3  # logits have a standard deviation of 8

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (extra `torch`)"
)


@pytest.fixture(scope="module")
def model(tiny_gguf):
    return load_gguf(tiny_gguf)


@pytest.fixture(scope="module")
def expected(model):
    """Logits after each token of PROMPT."""
    return reference_logits(model, PROMPT)


@pytest.fixture
def backend(model):
    return NumpyBackend(model, NUM_BLOCKS, BLOCK)


def step(start, end, blocks, needs_logits=True, tokens=PROMPT):
    return SequenceStep(tokens[start:end], start, blocks, needs_logits)


def assert_close(logits, expected):
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < TOLERANCE


def test_a_prompt_at_once_gives_the_reference_s_logits(backend, expected):
    """One step over the whole prompt."""
    (logits,) = backend.forward([step(0, 300, range(75))])
    assert_close(logits, expected[-1])


@pytest.mark.parametrize("shape", [TinyShape(num_kv_heads=4), TinyShape(tied_head=False)])
def test_other_shapes_give_the_reference_s_logits(tmp_path, shape):
    """Without grouped heads, and with a head of its own."""
    model = load_gguf(write_tiny_gguf(tmp_path / "m.gguf", shape, seed=3))
    (logits,) = NumpyBackend(model, 8, BLOCK).forward([step(0, 30, range(8))])
    assert_close(logits, reference_logits(model, PROMPT[:30])[-1])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_any_number_of_threads_gives_the_reference_s_logits(model, expected, num_threads):
    """A prompt of several tiles, and a step of one."""
    backend = NumpyBackend(model, NUM_BLOCKS, BLOCK, num_threads)
    assert_close(backend.forward([step(0, 290, range(75))])[0], expected[289])
    assert_close(backend.forward([step(290, 300, range(75))])[0], expected[299])


@given(cuts=st.sets(st.integers(1, 299), max_size=5), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_chunks_and_scattered_blocks_change_nothing(model, expected, cuts, seed):
    """Cut anywhere, kept in any blocks: the same logits after each chunk."""
    backend = NumpyBackend(model, NUM_BLOCKS, BLOCK)
    blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS)[:75].tolist()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 300], strict=True):
        (logits,) = backend.forward([step(start, end, blocks)])
        assert_close(logits, expected[end - 1])


def test_decoding_token_by_token_gives_the_reference_s_logits(backend, expected):
    """After a prefill, each single token sees all before it; runs and leaves are both used."""
    blocks = [*range(40), *range(205, 100, -3)]
    backend.forward([step(0, 200, blocks, needs_logits=False)])
    for position in range(200, 300):
        (logits,) = backend.forward([step(position, position + 1, blocks)])
        assert_close(logits, expected[position])


def branches(seed=5):
    """Prompts that share 0, 100, 160 or 161 leading tokens with PROMPT."""
    rng = np.random.default_rng(seed)
    return [
        [*PROMPT[:shared], *rng.integers(3, 279, 40).tolist()] for shared in (0, 100, 160, 161, 160)
    ]


def tables(prompts):
    """Blocks for each prompt: shared as far as whole blocks agree, its own from there on."""
    spare = iter(range(100, NUM_BLOCKS))
    result = []
    for prompt in prompts:
        common = next((i for i, (a, b) in enumerate(zip(prompt, PROMPT, strict=False)) if a != b))
        own = -(-(len(prompt) + 1) // BLOCK) - common // BLOCK
        result.append([*range(common // BLOCK), *(next(spare) for _ in range(own))])
    return result


def test_sequences_that_share_blocks_get_the_logits_they_get_alone(model, backend):
    """Prefill and decode in one batch, over a prefix tree with three levels."""
    backend.forward([step(0, 300, range(75), needs_logits=False)])
    prompts, blocks = branches(), tables(branches())
    starts = [len(b) * BLOCK for b in ([], range(25), range(40), range(40), range(40))]
    batch = [
        step(start, len(prompt), table, tokens=prompt)
        for start, prompt, table in zip(starts, prompts, blocks, strict=True)
    ]
    logits = backend.forward(batch)
    for row, prompt in zip(logits, prompts, strict=True):
        assert_close(row, reference_logits(model, prompt)[-1])

    grown = [[*prompt, 7] for prompt in prompts]
    mixed = [
        step(len(p) - 1, len(p), table, tokens=p) for p, table in zip(grown, blocks, strict=True)
    ]
    mixed[1:1] = [step(160, 200, [*range(40), *range(240, 250)])]  # a prefill among decodes
    logits = backend.forward(mixed)
    for row, prompt in zip(logits, [grown[0], PROMPT[:200], *grown[1:]], strict=True):
        assert_close(row, reference_logits(model, prompt)[-1])


def test_logits_are_returned_only_for_those_that_need_them_in_batch_order(backend, expected):
    """The order of rows inside a step does not show."""
    batch = [
        step(0, 30, range(50, 60)),
        step(0, 10, range(60, 63), needs_logits=False),
        step(0, 20, range(40, 45)),
    ]
    logits = backend.forward(batch)
    assert_close(logits, expected[[29, 19]])
    assert backend.forward([batch[1]]).shape == (0, 279)


def test_repeating_a_step_changes_nothing(backend):
    """After a failure the same step can be computed again."""
    backend.forward([step(0, 50, range(20), needs_logits=False)])
    first = backend.forward([step(50, 60, range(20))]).copy()
    assert np.array_equal(first, backend.forward([step(50, 60, range(20))]))


@needs_torch
def test_torch_agrees_within_bfloat16(tiny_gguf, model):
    """The optional backend computes the same function, over chunks, sharing and decoding."""
    from headstart.engines.embedded.torch_backend import TorchBackend

    def run(backend):
        backend.forward([step(0, 300, range(75), needs_logits=False)])
        batch = [step(160, 200, [*range(40), *range(240, 250)]), step(160, 161, range(100))]
        return backend.forward([step(299, 300, range(75)), *batch])

    ours = run(TorchBackend(model, NUM_BLOCKS, BLOCK))
    assert np.abs(ours - run(NumpyBackend(model, NUM_BLOCKS, BLOCK))).max() < 0.5

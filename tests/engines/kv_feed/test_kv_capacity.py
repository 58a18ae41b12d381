"""How much a replica can hold, from the pages that engines serve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engines.kv_feed.capacity import KvCapacity, read_capacity


def vllm(engine="0", **labels):
    facts = {"block_size": "32", "num_gpu_blocks": "140"} | labels | {"engine": engine}
    shown = ",".join(f'{name}="{value}"' for name, value in facts.items() if value is not None)
    return f"vllm:cache_config_info{{{shown}}} 1.0\n".encode()


def test_a_page_of_a_running_vllm(test_data):
    """364 blocks of 128 tokens, which the page also says as 46,592 tokens."""
    page = (test_data / "captures" / "vllm-metrics-sample.txt").read_bytes()
    assert read_capacity(page) == KvCapacity(46_592, 128)


def test_tokens_are_blocks_times_their_size_where_the_page_does_not_say():
    """Older releases of vLLM leave it to the reader."""
    assert read_capacity(vllm()) == KvCapacity(4_480, 32)
    assert read_capacity(vllm(kv_cache_size_tokens="None")) == KvCapacity(4_480, 32)


def test_the_engines_of_a_data_parallel_group_add_up():
    """Each holds other blocks."""
    assert read_capacity(vllm("0") + vllm("1")) == KvCapacity(8_960, 32)


@pytest.mark.parametrize("unknown", ["None", "0", "-1", "1e9", "", "nan"])
def test_a_size_that_is_not_said_is_unknown_and_not_zero(unknown):
    """vLLM writes None before its cache exists."""
    assert read_capacity(vllm(num_gpu_blocks=unknown)).tokens is None


def test_sglang_says_tokens_and_page_size_once_a_rank():
    """Tensor-parallel ranks hold shares of the same tokens; data-parallel ones do not."""
    page = b"".join(
        b'sglang:max_total_num_tokens{tp_rank="%d",dp_rank="%d"} 60000.0\n' % (tp, dp)
        + b'sglang:page_size{tp_rank="%d",dp_rank="%d"} 16\n' % (tp, dp)
        for tp in range(2)
        for dp in range(2)
    )
    assert read_capacity(page) == KvCapacity(120_000, 16)


def test_an_older_sglang_says_it_in_labels():
    """`sglang:cache_config_info` went in 0.5.11."""
    page = b'sglang:cache_config_info{model_name="m",page_size="4",num_pages="100"} 1\n'
    assert read_capacity(page) == KvCapacity(400, 4)


def test_sglang_without_a_page_size_metric_still_tells_tokens():
    """What one metric does not say, another may."""
    assert read_capacity(b"sglang:max_total_num_tokens 5000\n") == KvCapacity(5000, None)


def test_label_values_may_contain_anything():
    """A model's name is the operator's."""
    page = vllm(model_name=r"a\"b,block_size=\"7\"} 1")
    assert read_capacity(page) == KvCapacity(4_480, 32)


def test_engines_with_different_blocks_have_no_one_block_size():
    """Then nothing can be said for the whole replica."""
    assert read_capacity(vllm("0") + vllm("1", block_size="64")).block_size is None


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: b"sglang:" + text.encode()))
def test_any_page_is_read(page):
    """A page is not ours; whatever it holds means a capacity or none."""
    capacity = read_capacity(page)
    assert capacity.tokens is None or capacity.tokens > 0

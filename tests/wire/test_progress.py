"""`progress_figures`: what on an engine's metrics page shows that it computes."""

from headstart.wire.progress import progress_figures

PAGE = b"""# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="smol"} 20989.0
vllm:prompt_tokens_created{engine="0",model_name="smol"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="smol"} 712.0
vllm:iteration_tokens_total_sum{engine="0",model_name="smol"} 10437.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="smol"} 691.0
vllm:num_requests_running{engine="0",model_name="smol"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.25
vllm:request_success_total{engine="0",finished_reason="abort",model_name="smol"} 3.0
http_requests_total{handler="/metrics",method="GET",status="2xx"} 2.0
process_cpu_seconds_total 10.88
sglang:generation_tokens_total{model_name="a"} 7.0
headstart_engine_prefilled_tokens_total{engine="0",model_name="a"} 512.0
headstart_engine_evicted_blocks_total{engine="0",model_name="a"} 0.0
"""


def test_figures_of_the_computing_part_are_read():
    """By whole lines: only whether they differ matters."""
    assert progress_figures(PAGE) == (
        b'vllm:prompt_tokens_total{engine="0",model_name="smol"} 20989.0',
        b'vllm:generation_tokens_total{engine="0",model_name="smol"} 712.0',
        b'vllm:iteration_tokens_total_sum{engine="0",model_name="smol"} 10437.0',
        b'vllm:num_requests_running{engine="0",model_name="smol"} 1.0',
        b'vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.25',
        b'sglang:generation_tokens_total{model_name="a"} 7.0',
        b'headstart_engine_prefilled_tokens_total{engine="0",model_name="a"} 512.0',
    )


def test_figures_that_the_http_server_moves_are_not():
    """A frozen engine's page counts its own readers, its processor time and clients that leave."""
    later = PAGE.replace(b'"2xx"} 2.0', b'"2xx"} 3.0')
    later = later.replace(b"seconds_total 10.88", b"seconds_total 10.99")
    later = later.replace(b'model_name="smol"} 3.0', b'model_name="smol"} 4.0')
    assert later != PAGE
    assert progress_figures(later) == progress_figures(PAGE)


def test_a_piece_of_a_long_prompt_shows():
    """It is counted at its end only, but takes blocks before."""
    assert progress_figures(PAGE.replace(b"} 0.25", b"} 0.27")) != progress_figures(PAGE)


def test_a_page_without_such_figures_has_none():
    """An engine of another kind, or no page at all."""
    assert progress_figures(b"") == ()
    assert progress_figures(b"<html>vllm:prompt_tokens_total</html>") == ()


def test_the_page_of_a_real_vllm_has_them(test_data):
    """Captured from vLLM 0.32."""
    page = (test_data / "captures" / "vllm-metrics-sample.txt").read_bytes()
    names = {line.split(b"{")[0] for line in progress_figures(page)}
    assert {
        *(b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total"),
        *(b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc"),
        *(b"vllm:iteration_tokens_total_sum", b"vllm:prefix_cache_queries_total"),
    } <= names

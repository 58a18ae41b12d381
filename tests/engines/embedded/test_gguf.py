"""Model files: what is read, how fast it fails, and what it says."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from headstart.engines.embedded.gguf import load_chat_template, load_gguf, load_tokenizer
from headstart.engines.embedded.model import read_config, read_layers
from headstart.errors import ModelUnavailable
from tiny_model import CHAT_TEMPLATE, TinyShape, vocabulary, write_tiny_gguf


def test_the_header_is_what_the_writer_wrote(tiny_gguf):
    """Metadata of each type, and every tensor's place."""
    model = load_gguf(tiny_gguf)
    assert model.metadata["general.architecture"] == "llama"
    assert model.metadata["llama.rope.freq_base"] == 10000.0
    assert model.metadata["tokenizer.ggml.tokens"] == vocabulary()[0]
    assert model.metadata["tokenizer.ggml.add_bos_token"] is False
    assert model.tensors["token_embd.weight"].shape == (len(vocabulary()[0]), 64)
    assert len(model.tensors) == 2 + 2 * 9


def test_tensors_are_those_that_the_library_reads(tiny_gguf):
    """Our reader and gguf's agree, number for number."""
    model = load_gguf(tiny_gguf)
    for tensor in gguf.GGUFReader(tiny_gguf).tensors:
        ours = model.tensor(tensor.name)
        assert np.array_equal(ours, np.asarray(tensor.data).reshape(ours.shape))


def test_quantised_tensors_come_back_as_float32(tmp_path, tiny_gguf):
    """Q8_0 differs from the original by at most half a step."""
    quantised = load_gguf(write_tiny_gguf(tmp_path / "q.gguf", quantized=True))
    exact = load_gguf(tiny_gguf)
    name = "blk.1.ffn_down.weight"
    ours = quantised.tensor(name)
    assert ours.dtype == np.float32
    assert 0 < np.abs(ours - exact.tensor(name)).max() < np.abs(ours).max() / 127


def test_template_tokenizer_and_end_tokens_come_from_the_metadata(tiny_gguf):
    """What the server needs is there without reading weights."""
    model = load_gguf(tiny_gguf)
    assert load_chat_template(tiny_gguf) == CHAT_TEMPLATE
    assert (model.bos_token, model.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert model.bos_token_id == 1
    assert not model.add_bos_token
    assert model.end_token_ids == {0, 2}
    assert load_tokenizer(tiny_gguf).encode("<|im_end|>") == [2]


def test_a_missing_file_says_what_to_do(tmp_path):
    """The path is named, and the command that fetches a model."""
    with pytest.raises(ModelUnavailable, match=r"none\.gguf: .*headstart model fetch"):
        load_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "fetch it again"),
        (b"GG", "ends inside its header, at byte 2"),
        (b"PK\x03\x04 a zip file", "not a GGUF file"),
        (b"GGUF\x01\0\0\0" + bytes(16), "GGUF version 1"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "ends inside its header"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path, contents, message):
    """Empty, short, foreign, old and nonsensical files get an error, not a crash."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(contents)
    with pytest.raises(ModelUnavailable, match=message):
        load_gguf(path)


def test_a_header_cut_anywhere_is_refused(tmp_path, tiny_gguf):
    """No prefix of a header is taken for a whole one."""
    data = tiny_gguf.read_bytes()
    end = min(tensor.offset for tensor in load_gguf(tiny_gguf).tensors.values())
    path = tmp_path / "cut.gguf"
    for length in range(1, end - 32, 97):
        path.write_bytes(data[:length])
        with pytest.raises(ModelUnavailable):
            load_gguf(path)


def test_weights_that_are_cut_short_are_refused(tmp_path, tiny_gguf):
    """An incomplete download is found when its weights are read."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:-100])
    model = load_gguf(path)
    last = max(model.tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(ModelUnavailable, match="cut short, fetch it again"):
        model.tensor(last.name)


def test_a_tensor_at_an_offset_that_no_file_has_is_refused(tiny_gguf):
    """A damaged header that can still be parsed."""
    model = load_gguf(tiny_gguf)
    name, info = next(iter(model.tensors.items()))
    broken = replace(model, tensors={name: replace(info, offset=2**63)})
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        broken.tensor(name)


def test_another_architecture_is_refused_by_name(tmp_path):
    """The error names the architecture and those that work."""
    model = load_gguf(write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen2"))
    with pytest.raises(ModelUnavailable, match=r"'qwen2'.*'llama'"):
        read_config(model)


def test_sizes_are_read_and_checked_against_the_tensors(tmp_path, tiny_gguf):
    """A tensor that does not have the promised shape is an error that names it."""
    config = read_config(load_gguf(tiny_gguf))
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.group_size, config.rope_dim) == (16, 2, 16)
    assert config.kv_bytes_per_token == 2 * 4 * 2 * 2 * 16
    wide = load_gguf(write_tiny_gguf(tmp_path / "wide.gguf", TinyShape(ffn_dim=128)))
    with pytest.raises(ModelUnavailable, match=r"blk\.0\.ffn_gate\.weight is \(128, 64\)"):
        list(read_layers(wide, config))


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path, tiny_gguf):
    """A model with biases would run and answer nonsense; it is refused instead."""
    data = tiny_gguf.read_bytes().replace(b"blk.0.attn_v.weight", b"blk.0.attn_vbias.xx", 1)
    path = tmp_path / "bias.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelUnavailable, match="attn_vbias"):
        read_config(load_gguf(path))

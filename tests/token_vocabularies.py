"""Small tokenizers of the kinds that real models have, trained on a few sentences."""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "You are a helpful assistant. Answer the user's question in one sentence.",
    "What is the weather like in Paris today? It is 21 degrees and the sky is clear.",
    "Ich hätte gern ein Stück Käsekuchen, naïve façade, 你好 世界, 1234567 and 3.14159.",
    "def main(argument: str) -> None:\n    print('hello world')\n\n\treturn None",
    '{"name": "get_weather", "arguments": {"place": "Paris", "days": 2}}',
]

LLAMA3_SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
LLAMA3_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim }}"
    "{%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}"
    "{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if tools %}{{- tools | tojson }}{%- endif %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama3_like() -> Tokenizer:
    """Byte-level BPE; special tokens in angle brackets; BOS put before text that asks for it."""
    backend = Tokenizer(models.BPE(ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXT, trainer)
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in LLAMA3_SPECIALS])
    bos = LLAMA3_SPECIALS[0]
    backend.post_processor = processors.TemplateProcessing(
        f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    return backend


def sentencepiece_like() -> Tokenizer:
    """BPE with byte fallback, spaces as "▁" and one put before every stretch of text."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return _trained_on_pieces(backend)


def metaspace_first() -> Tokenizer:
    """As newer conversions of SentencePiece: the space is put before the text's very start only."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _trained_on_pieces(backend)


def _trained_on_pieces(backend: Tokenizer) -> Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *byte_tokens], show_progress=False
    )
    backend.train_from_iterator([text.replace(" ", "▁") for text in TEXT], trainer)
    # Trained as special tokens so that they have ids; in text they are ordinary characters.
    description = json.loads(backend.to_str())
    description["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(description))
    plain.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<s>", "</s>", "[INST]", "[/INST]")]
    )
    return plain


def awkward() -> Tokenizer:
    """Lower-cased, with added tokens that reach over their own start or are found late."""
    backend = Tokenizer(models.BPE(unk_token=None))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXT, trainer)
    backend.add_tokens(
        [
            AddedToken("<plain>", normalized=False),
            AddedToken("<plain>x", normalized=False),
            AddedToken("<left>", normalized=False, lstrip=True),
            AddedToken("<right>", normalized=False, rstrip=True),
            AddedToken("word", normalized=False, single_word=True),
            AddedToken("<word>", normalized=False, single_word=True),
            AddedToken("<late>", normalized=True),
            AddedToken("  ", normalized=False),
            AddedToken("n><p", normalized=False),
        ]
    )
    return backend


VOCABULARIES = {
    "llama3_like": llama3_like,
    "sentencepiece_like": sentencepiece_like,
    "metaspace_first": metaspace_first,
    "awkward": awkward,
}


def write_model_folder(folder: Path, backend: Tokenizer, template: str | None, **settings) -> Path:
    """Write the files that a model's folder has; `settings` go into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if template is not None:
        settings = {"chat_template": template, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder

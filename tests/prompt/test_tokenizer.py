"""Tokenizers from vocabularies and tokenizer.json, and decoding token by token."""

import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from headstart.errors import ModelUnavailable
from headstart.prompt.tokenizer import IncrementalDecoder, Tokenizer, VocabularySpec
from tiny_model import MERGES, vocabulary


def tiny_spec(pre="smollm"):
    tokens, types = vocabulary()
    merges = [" ".join(merge) for merge in MERGES]
    return VocabularySpec("gpt2", pre, tokens, types, merges=merges)


def sentencepiece_spec():
    """A SentencePiece vocabulary: control, bytes, pieces with scores."""
    pieces = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)]
    pieces += [(f"<0x{byte:02X}>", 6, 0.0) for byte in range(256)]
    words = ["▁t", "he", "▁the", "in", "▁", "t", "h", "e", "i", "n", "g", "ing", "x"]
    pieces += [(word, 1, -float(rank)) for rank, word in enumerate(words)]
    tokens, types, scores = zip(*pieces, strict=True)
    return VocabularySpec("llama", "default", tokens, types, scores=scores)


@pytest.fixture(scope="module")
def tiny():
    return Tokenizer.from_vocabulary(tiny_spec())


@pytest.fixture(scope="module")
def sentencepiece():
    return Tokenizer.from_vocabulary(sentencepiece_spec())


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(text=ANY_TEXT)
def test_text_survives_encoding_and_decoding(tiny, text):
    """Byte-level BPE loses nothing, whatever the characters."""
    assert tiny.decode(tiny.encode(text), skip_special=False) == text
    assert tiny.decode(tiny.encode_plain(text)) == text


@given(text=ANY_TEXT.filter(lambda text: "▁" not in text))
def test_text_survives_sentencepiece(sentencepiece, text):
    """Byte fallback loses nothing either; the space put in front is taken away again.

    U+2581 alone comes back as a space, which it stands for in SentencePiece.
    """
    assert sentencepiece.decode(sentencepiece.encode(text)) == text


def test_special_tokens_in_text_become_their_ids_only_when_asked(tiny):
    """A user's text cannot forge a turn if it is encoded plainly."""
    text = "<|im_start|>user"
    assert tiny.encode(text)[0] == tiny.token_id("<|im_start|>") == 1
    assert 1 not in tiny.encode_plain(text)
    assert tiny.decode(tiny.encode_plain(text)) == text


def test_control_tokens_are_left_out_of_text_unless_asked(tiny):
    """Chat output shows no <|im_end|>."""
    ids = tiny.encode("the<|im_end|>")
    assert tiny.decode(ids) == "the"
    assert tiny.decode(ids, skip_special=False) == "the<|im_end|>"


def test_no_beginning_is_added(tiny, sentencepiece):
    """BOS is the chat template's or the caller's business."""
    assert tiny.encode("") == sentencepiece.encode("") == []


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["12", "1", "2"]),
        ("gpt-2", ["12", "12"]),
        ("qwen2", ["12", "1", "2"]),
        ("llama-bpe", ["1234", "123", "4"]),
    ],
)
def test_digits_are_split_as_the_pre_tokenizer_says(pre, pieces):
    """The same merges give other tokens under another rule."""
    tokens, types = vocabulary()
    digits = ["12", "123", "1234"]
    merges = [*(" ".join(m) for m in MERGES), "1 2", "12 3", "123 4"]
    spec = VocabularySpec("gpt2", pre, [*tokens, *digits], [*types, 1, 1, 1], merges=merges)
    tokenizer = Tokenizer.from_vocabulary(spec)
    text, *expected = pieces
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == expected


def test_sentencepiece_joins_the_best_scored_pair_first(sentencepiece):
    """'the' is one piece, 'thing' is '▁t' 'h' 'ing', and an unknown character is bytes."""
    pieces = [sentencepiece.token_bytes(i) for i in sentencepiece.encode("the thing")]
    assert pieces == [b" the", b" t", b"h", b"ing"]
    unknown = [sentencepiece.token_bytes(i) for i in sentencepiece.encode("é")]
    assert unknown == [b" ", b"\xc3", b"\xa9"]


@pytest.mark.parametrize(
    ("model", "pre", "named"), [("gpt2", "martian", "martian"), ("bert", "", "bert")]
)
def test_an_unknown_vocabulary_is_refused_by_name(model, pre, named):
    """The error names what is not known."""
    tokens, types = vocabulary()
    with pytest.raises(ModelUnavailable, match=named):
        Tokenizer.from_vocabulary(VocabularySpec(model, pre, tokens, types))


@given(text=ANY_TEXT)
def test_incremental_decoding_gives_the_same_text(tiny, sentencepiece, text):
    """Fed token by token, nothing is lost, doubled or reordered."""
    for tokenizer in (tiny, sentencepiece):
        decoder = IncrementalDecoder(tokenizer)
        ids = tokenizer.encode_plain(text)
        assert "".join(map(decoder.feed, ids)) + decoder.flush() == text


def test_half_a_character_is_never_emitted(tiny):
    """The bytes of one emoji are four tokens; text appears with the last."""
    decoder = IncrementalDecoder(tiny)
    assert [decoder.feed(i) for i in tiny.encode("😀")] == ["", "", "", "😀"]


def test_an_unfinished_character_becomes_a_replacement_at_the_end(tiny):
    """A model that stops in mid-character leaves U+FFFD, not an error."""
    decoder = IncrementalDecoder(tiny)
    *head, _ = tiny.encode("é")
    assert [decoder.feed(i) for i in head] == [""]
    assert decoder.flush() == "\ufffd"


def test_invalid_bytes_do_not_hold_text_back(tiny):
    """A stray continuation byte is replaced at once and decoding goes on."""
    decoder = IncrementalDecoder(tiny)
    stray = tiny.encode("é")[-1]
    a = tiny.encode("a")[0]
    assert decoder.feed(stray) + decoder.feed(a) == "\ufffda"


def hf_tokenizer():
    """A byte-level BPE as Hugging Face trains one."""
    trained = HfTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(["the thing and the other thing, naïve 漢字"] * 9, trainer)
    return trained


def test_tokenizer_json_gives_the_library_s_ids_and_text():
    """A file is read with its own rules; special tokens are the ones it declares."""
    trained = hf_tokenizer()
    tokenizer = Tokenizer.from_json(trained.to_str().encode())
    text = "the naïve thing 漢字 😀<|end|>"
    assert tokenizer.encode(text) == trained.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text.removesuffix("<|end|>")
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text
    assert tokenizer.vocab_size == trained.get_vocab_size()


def test_a_broken_tokenizer_json_is_refused():
    """Neither bad JSON nor a decoder without bytes gets through."""
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        Tokenizer.from_json(b"{")
    description = json.loads(hf_tokenizer().to_str())
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(ModelUnavailable, match="WordPiece"):
        Tokenizer.from_json(json.dumps(description).encode())


@pytest.mark.parametrize("encode", [Tokenizer.encode, Tokenizer.encode_plain])
def test_other_threads_run_while_a_long_text_is_tokenised(tiny, encode):
    """One client's long prompt must not hold up the streams of all others."""
    text = "the user and the other thing " * 50_000
    encode(tiny, "x")  # builds what is built once
    turns = 0
    encoder = threading.Thread(target=encode, args=(tiny, text))
    encoder.start()
    while encoder.is_alive():
        turns += 1
        encoder.join(0.001)
    assert turns > 20


def test_a_vocabulary_whose_parts_do_not_fit_is_refused():
    """A merge of tokens that are not there: the file is damaged."""
    with pytest.raises(ModelUnavailable, match=r"vocabulary cannot be used.*fetch it again"):
        Tokenizer.from_vocabulary(replace(tiny_spec(), merges=["no such"]))

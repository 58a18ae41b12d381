"""Text cut where tokenizers cut it anyway."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.prompt.text_cutter import AddedToken, TextCutter
from headstart.prompt.text_encoder import encoder_of
from token_vocabularies import TEXT, VOCABULARIES


@pytest.fixture(scope="module", params=sorted(VOCABULARIES))
def backend(request):
    return VOCABULARIES[request.param]()


FRAGMENTS = [
    "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot", "_id|>",
    "<s>", "</s>", "[INST]", "[/INST]", "<plain>", "<plain>x", "<left>", "<right>", "word",
    "<word>", "<late>", "<LATE>", "n><p", "<plai", "lain>", " ", "  ", "   ", "\n", "\n\n", "\t",
    "a", "b ", " c", "Paris", "wordy", "1234", "é", "你好", "👋🏽", "'s", ".", "_", "<", ">", "|",
    *TEXT[:2],
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=12).map("".join)


@given(text=TEXTS)
def test_pieces_have_the_ids_of_the_whole(backend, text):
    """Tokenised one by one and put together, they are what the text is, whatever the vocabulary."""
    encoder = encoder_of(backend)
    pieces = encoder.cut(text)
    assert "".join(pieces) == text
    assert all(pieces)
    whole = backend.encode(text, add_special_tokens=False).ids
    assert list(chain.from_iterable(encoder.encode(pieces))) == whole == encoder.ids(text)


def test_a_conversation_is_cut_at_every_special_token():
    """Each turn is a piece or two, which begin with their token."""
    cut = TextCutter([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")]).cut
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    pieces = ["<|im_start|>user\nHi", "<|im_end|>\n", "<|im_start|>assistant\n"]
    assert cut(text) == pieces
    assert cut("Oh" + text) == ["Oh", *pieces]
    assert cut("") == []


def test_the_longest_token_wins():
    """A token that begins with another hides it, and one that overlaps it from before, too."""
    cut = TextCutter(map(AddedToken, ["<a", "<ab>", "x<a"])).cut
    assert cut("-<ab>-<a") == ["-", "<ab>-", "<a"]
    assert cut("-x<ab>") == ["-x<ab>"]


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("<x>", strips_left=True),
        AddedToken("<x>", is_single_word=True),
        AddedToken("<x>", is_normalized=True),
        AddedToken(" x"),
        AddedToken("x"),
        AddedToken("_x"),
    ],
)
def test_no_piece_begins_with_a_token_that_reaches_over_its_start(token):
    """Such a token stays inside a piece."""
    assert TextCutter([token]).cut(f"a {token.text} b") == [f"a {token.text} b"]


def test_thousands_of_tokens_are_searched_in_one_pass():
    """The expression is a tree of letters: text full of beginnings costs no more."""
    tokens = [f"<unused{i}>" for i in range(6000)]
    cut = TextCutter(map(AddedToken, tokens)).cut
    html = "<p><b>unused</b><unused><unused12x>" * 50
    assert cut(html + "<unused77>") == [html, "<unused77>"]

"""Documents: the same set gives the same text, in the order that the template states."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import TemplateError
from headstart.prompt.documents import DocumentOrder, document_key, order_documents
from headstart.prompt.text import compile_text

_documents = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from("abcd"),
            "text": st.sampled_from(["one", "two", "three"]),
            "score": st.sampled_from([0.1, 0.5, 2]),
        }
    ),
    max_size=8,
)


def _ids(value: object, order: DocumentOrder, first_seen: tuple[str, ...] = ()) -> list[object]:
    return [document["id"] for document in order_documents(value, order, first_seen=first_seen)]


@given(_documents, st.randoms(use_true_random=False), st.sampled_from(["by_id", "by_score"]))
def test_the_order_of_the_search_does_not_matter(
    documents: list[dict[str, object]], rng: random.Random, order: str
) -> None:
    shuffled = rng.sample(documents, len(documents))
    first, second = (
        order_documents(value, DocumentOrder(order)).text for value in (documents, shuffled)
    )
    assert first == second


@given(_documents, _documents)
def test_a_document_that_the_session_has_seen_never_moves_behind_a_new_one(
    old: list[dict[str, object]], new: list[dict[str, object]]
) -> None:
    seen = order_documents(old, DocumentOrder.AS_FIRST_SEEN).keys
    now = order_documents(new, DocumentOrder.AS_FIRST_SEEN, first_seen=seen).keys
    known = [key for key in now if key in seen]
    assert list(now[: len(known)]) == known == [key for key in seen if key in known]
    given = list(dict.fromkeys(str(d["id"]) for d in new))
    assert [key for key in now if key not in seen] == [key for key in given if key not in seen]


def test_by_score_puts_the_highest_first_and_breaks_ties_by_id() -> None:
    documents = [
        {"id": "c", "text": "x", "score": 0.5},
        {"id": "a", "text": "x", "score": 0.5},
        {"id": "b", "text": "x", "score": 0.9},
    ]
    assert _ids(documents, DocumentOrder.BY_SCORE) == ["b", "a", "c"]


def test_equal_documents_are_kept_once_and_chunks_of_one_id_are_not_equal() -> None:
    documents = [
        {"id": "a", "text": "second", "score": 1},
        {"id": "a", "text": "first", "score": 2},
        {"id": "a", "text": "second", "score": 3},
    ]
    ordered = order_documents(documents, DocumentOrder.BY_SCORE)
    assert [document["text"] for document in ordered] == ["second", "first"]


def test_the_text_has_ids_and_no_scores() -> None:
    documents = order_documents(
        [{"id": 7, "text": "Seven.", "score": 0.123}, "Bare."], DocumentOrder.AS_FIRST_SEEN
    )
    assert documents.text == (
        '<document id="7">\nSeven.\n</document>\n<document>\nBare.\n</document>'
    )


def test_a_text_can_write_documents_in_its_own_form() -> None:
    source = "{% for d in documents %}{{ loop.index }}. {{ d.title }}: {{ d.text }}\n{% endfor %}"
    documents = order_documents(
        [{"id": "b", "text": "B", "title": "TB"}, {"id": "a", "text": "A", "title": "TA"}],
        DocumentOrder.BY_ID,
    )
    assert compile_text(source).render({"documents": documents}) == "1. TA: A\n2. TB: B\n"
    assert compile_text("{{ documents | length }}").render({"documents": documents}) == "2"


def test_a_key_is_the_id_or_a_hash_but_never_the_text() -> None:
    assert document_key({"id": "a", "text": "secret"}) == "a"
    assert document_key({"text": "secret"}).startswith("sha256:")
    assert "secret" not in document_key({"text": "secret"})


@pytest.mark.parametrize(
    ("value", "order", "problem"),
    [
        ("one text", "by_id", "must be a list of documents, not a string"),
        (None, "by_id", "not null"),
        (["bare"], "by_id", r"\[0\] has no `id`, which `order: by_id` needs"),
        ([{"id": "a", "text": "x"}], "by_score", r"\[0\] needs a `score`"),
        ([{"id": "a", "text": "x", "score": True}], "by_score", "needs a `score`"),
        ([{"id": "a"}], "as_first_seen", r"\[0\] needs a `text`"),
        ([{"id": ["a"], "text": "x"}], "as_first_seen", "an `id` that is a string"),
        ([5], "as_first_seen", r"\[0\] must be a string or an object"),
    ],
)
def test_wrong_documents_are_refused_with_their_position(
    value: object, order: str, problem: str
) -> None:
    with pytest.raises(TemplateError, match=problem):
        order_documents(value, DocumentOrder(order))

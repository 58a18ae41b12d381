"""Retrieved documents in an order that does not depend on how a search returned them.

A retriever that returns the same documents in another order changes the prompt at the first
document and so makes the whole rest of it uncached. The template states the order:

    by_id          by the id; equal ids by their text
    by_score       highest score first; equal scores by id, then by text
    as_first_seen  those that the session has seen before in the order in which it first saw them,
                   then new ones as given: what stood in front stays in front

Equal documents (same id, same text) are kept once. Nothing else is dropped.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import SupportsIndex, overload

from headstart.errors import TemplateError


class DocumentOrder(StrEnum):
    """In which order a list of documents enters the prompt."""

    BY_ID = "by_id"
    BY_SCORE = "by_score"
    AS_FIRST_SEEN = "as_first_seen"


Document = Mapping[str, object]
"""`text`, and `id`, `score` or further fields as the request gave them."""


class DocumentList(Sequence[Document]):
    """Documents in their final order; `text` is what `{{ documents }}` becomes.

    A text that wants another form iterates: `{% for d in documents %}{{ d.text }}{% endfor %}`.
    """

    __slots__ = ("_documents",)

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = tuple(documents)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Document | Sequence[Document]:
        return self._documents[index]

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def text(self) -> str:
        """One block per document; the score is left out, because it changes with each search."""
        return "\n".join(_block(document) for document in self._documents)

    @property
    def keys(self) -> tuple[str, ...]:
        """Each document's identity, for the session's memory: its id, or a hash of its text."""
        return tuple(dict.fromkeys(document_key(document) for document in self._documents))


def document_key(document: Document) -> str:
    """Return the id, or for a document without one a hash of its text; never the text."""
    identity = document.get("id")
    if isinstance(identity, str):
        return identity
    return "sha256:" + hashlib.sha256(str(document["text"]).encode()).hexdigest()


def order_documents(
    value: object, order: DocumentOrder, *, first_seen: Sequence[str] = ()
) -> DocumentList:
    """Return the documents in the stated order; does not change or cut a text.

    Args:
        value: a list of strings or of objects with `text`, and `id` (string or integer) and
            `score` (number) where the order needs them.
        order: the template's choice.
        first_seen: for `as_first_seen`, keys (`DocumentList.keys`) of the documents of the
            session's earlier requests, oldest first.

    Raises:
        TemplateError: not such a list. The message names positions, never texts.

    Cost: O(n log n).
    """
    if not isinstance(value, list | tuple):
        raise TemplateError(
            f"must be a list of documents, not {_type_name(value)}; send strings or objects "
            'like {"id": "…", "text": "…"}'
        )
    documents = [_parse(item, index, order) for index, item in enumerate(value)]
    if order is DocumentOrder.BY_ID:
        documents.sort(key=_identity)
    elif order is DocumentOrder.BY_SCORE:
        documents.sort(key=lambda document: (-_score(document), *_identity(document)))
    else:
        seen_at = {key: index for index, key in enumerate(first_seen)}
        # The sort is stable: new documents, all equal here, keep the request's order.
        documents.sort(key=lambda document: seen_at.get(document_key(document), len(seen_at)))
    unique: dict[tuple[str, str], Document] = {}
    for document in documents:
        unique.setdefault(_identity(document), document)
    return DocumentList(list(unique.values()))


def _parse(item: object, index: int, order: DocumentOrder) -> Document:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, Mapping):
        raise TemplateError(f"[{index}] must be a string or an object, not {_type_name(item)}")
    if not isinstance(item.get("text"), str):
        raise TemplateError(f"[{index}] needs a `text` that is a string")
    document = dict(item)
    identity = document.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        document["id"] = str(identity)
    elif identity is not None and not isinstance(identity, str):
        raise TemplateError(f"[{index}] needs an `id` that is a string or an integer")
    if identity is None and order is not DocumentOrder.AS_FIRST_SEEN:
        raise TemplateError(
            f"[{index}] has no `id`, which `order: {order.value}` needs; send one, or let the "
            "template say `order: as_first_seen`"
        )
    if order is DocumentOrder.BY_SCORE and not _is_finite_number(document.get("score")):
        raise TemplateError(f"[{index}] needs a `score` that is a number (`order: by_score`)")
    return document


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _identity(document: Document) -> tuple[str, str]:
    return str(document.get("id", "")), str(document["text"])


def _score(document: Document) -> float:
    score = document["score"]
    assert isinstance(score, int | float)
    return score


def _block(document: Document) -> str:
    identity = document.get("id")
    head = "<document>" if identity is None else f'<document id="{identity}">'
    return f"{head}\n{document['text']}\n</document>"


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    return "a string" if isinstance(value, str) else f"a {type(value).__name__}"

"""What assembly did, as a value: where each segment lies in the body and how stable it is.

Routing, accounting and diagnosis read a plan; it holds no prompt text and so may be recorded.
"""

from dataclasses import dataclass

from headstart.prompt.segments import SegmentKind


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """One segment of one assembled body.

    Attributes:
        name: the template's name for it.
        kind: how long its bytes stay the same.
        start_byte: offset in the body of its first byte.
        end_byte: offset after its last byte; equal to `start_byte` for an empty segment.
        num_messages: chat messages that it contributes to, 0 for tools and schema.
        fingerprint: XXH3-128 of its bytes in hexadecimal: equal bytes, equal fingerprint.
    """

    name: str
    kind: SegmentKind
    start_byte: int
    end_byte: int
    num_messages: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """How a body was put together.

    Attributes:
        template_label: `id@version`.
        namespace: what must be equal for reuse beside the tokens; now the model's name.
        static_prefix_hash: `sha256:…` of the template version (`templates.version`).
        static_end_byte: the body's bytes before this offset are the same for every request of
            this version to this model.
        segments: in the order of the body.
        document_keys: for each variable with an order, the documents as they stand in the prompt;
            a session's memory for `as_first_seen` appends new ones to what it has.
    """

    template_label: str
    namespace: str
    static_prefix_hash: str
    static_end_byte: int
    segments: tuple[PlannedSegment, ...]
    document_keys: tuple[tuple[str, tuple[str, ...]], ...] = ()

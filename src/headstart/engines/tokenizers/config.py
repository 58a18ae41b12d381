"""What the operator says of tokenizers."""

from collections.abc import Mapping
from dataclasses import dataclass

from headstart.prompt.template_traits import ContentFormat
from headstart.prompt.token_cache import DEFAULT_CACHE_BYTES


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """The tokenizer of one engine's model.

    Attributes:
        path: a model's folder (with tokenizer.json), a tokenizer.json, or a GGUF file.
        chat_template: file with the chat template, where the engine was given one
            (`vllm serve --chat-template`); None takes the model's own.
        chat_template_kwargs: what the engine was told with `--default-chat-template-kwargs`.
        content_format: what the engine was told with `--chat-template-content-format`; None finds
            out as the engine does.
        sample_s: at most once in so long a request is compared with the engine's `/tokenize`; it is
            sent, after its answer, to the replica that has served it, and to no other. 0 compares
            built-in conversations and counts only.
    """

    path: str
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    content_format: ContentFormat | None = None
    sample_s: float = 60.0


@dataclass(frozen=True, slots=True)
class TokenisingConfig:
    """How the gateway tokenises.

    Attributes:
        deadline_s: a request waits so long for its tokens, and is then routed without them.
        max_waiting_bytes: bodies that wait to be tokenised; one that comes when there are more is
            routed without its tokens.
        max_prompt_bytes: a longer body is not tokenised; it would keep the others waiting.
        cache_bytes: of ids and keys of text seen before, per tokenizer.
        prompt_cache_bytes: of whole prompts seen before, of all models.
    """

    deadline_s: float = 0.05
    max_waiting_bytes: int = 8 * 1024 * 1024
    max_prompt_bytes: int = 1024 * 1024
    cache_bytes: int = DEFAULT_CACHE_BYTES
    prompt_cache_bytes: int = 32 * 1024 * 1024

"""Build response bodies in OpenAI's forms with vLLM's additions; pure, no HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstart.engines.embedded.request import FinishReason
from headstart.prompt.tool_calls import ToolCall
from headstart.types import JsonObject


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body of one request repeats.

    Attributes:
        id: `chatcmpl-…` or `cmpl-…`.
        created: seconds since 1970.
        model: the name the client may use.
    """

    id: str
    created: int
    model: str

    def body(self, kind: str, choices: Sequence[Mapping[str, object]]) -> JsonObject:
        """Return a body of type `kind` with these choices and no usage."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Token counts of one request, summed over its sequences; a prompt counts once for all n."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def body(self) -> JsonObject:
        """Return the `usage` object; cached tokens are always stated."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def api_finish_reason(reason: FinishReason, *, has_called: bool = False) -> str:
    """Return the reason as clients know it; an answer cut by its limit stays `length`."""
    return "tool_calls" if has_called and reason == "stop" else reason


def tool_call_body(call: ToolCall, call_id: str) -> JsonObject:
    """Return one entry of `message.tool_calls`."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def chat_choice(
    index: int, text: str, calls: Sequence[JsonObject], finish_reason: str
) -> JsonObject:
    """Return one choice of a whole chat answer; content is null if there are only calls."""
    message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = list(calls)
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason,
    }


def chat_delta(index: int, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    """Return one choice of a chat chunk."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def completion_choice(index: int, text: str, finish_reason: str | None) -> JsonObject:
    """Return one choice of a completion, whole or a chunk."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}

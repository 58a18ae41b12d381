"""Gather the outputs of a request's sequences: whole answers, and the token counts of all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.engines.embedded.api.outputs import OutputStream
from headstart.engines.embedded.api.responses import UsageCounts
from headstart.engines.embedded.request import FinishReason, GenerationOutput


@dataclass(slots=True)
class Answer:
    """One sequence as far as it has come; owned by the request that collects it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "abort"


class UsageTally:
    """Counts tokens over `n` choices of each prompt.

    A prompt counts once, with what its first choice found in the cache: the others share the
    blocks that it computes.
    """

    __slots__ = ("_choices_per_prompt", "_last")

    def __init__(self, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._last: dict[int, GenerationOutput] = {}

    def add(self, index: int, output: GenerationOutput) -> None:
        """Take in the latest output of sequence `index`."""
        self._last[index] = output

    def counts(self) -> UsageCounts:
        """Return the counts so far."""
        firsts = [out for at, out in self._last.items() if at % self._choices_per_prompt == 0]
        return UsageCounts(
            prompt_tokens=sum(out.num_prompt_tokens for out in firsts),
            cached_tokens=sum(out.cached_tokens for out in firsts),
            completion_tokens=sum(out.num_output_tokens for out in self._last.values()),
        )


async def collect(stream: OutputStream, num_sequences: int, tally: UsageTally) -> Sequence[Answer]:
    """Return every sequence's whole answer, in order."""
    answers = [Answer() for _ in range(num_sequences)]
    async for index, output in stream.outputs():
        tally.add(index, output)
        answer = answers[index]
        answer.text += output.text
        answer.token_ids.extend(output.token_ids)
        if output.finish_reason is not None:
            answer.finish_reason = output.finish_reason
    return answers

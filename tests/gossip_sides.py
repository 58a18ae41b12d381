"""Processes that gossip, without an engine: replicas, requests, what an index was told."""

from dataclasses import dataclass, field

from headstart.prompt.fingerprint import NO_KEYS, PromptKeys, prompt_keys
from headstart.prompt.token_keys import TokenPrompt
from headstart.routing.dispatch import Dispatch
from headstart.routing.load import RemoteLoad, Work
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.replica import Replica


def prompt_of(text: str, num_blocks: int = 3) -> PromptKeys:
    """The keys of a prompt that no other text has."""
    return prompt_keys([text.encode().ljust(num_blocks * 1024, b".")], b"")


@dataclass
class HeardIndex:
    """Notes what the prefix index was told, as (what, slot, keys, figures)."""

    heard: list[tuple] = field(default_factory=list)
    tokens: list[TokenPrompt | None] = field(default_factory=list)

    def dispatched_elsewhere(self, slot, prompt, tokens, now):
        self.tokens.append(tokens)
        self.heard.append(("dispatched", slot, prompt))

    def first_token(self, slot, prompt, now):
        assert any(prompt is told for what, _, told, *_ in self.heard if what == "dispatched")
        self.heard.append(("computed", slot, prompt))

    def answered(self, slot, prompt, tokens, matched, num_input, cached, output, now):
        assert tokens is None or any(tokens is told for told in self.tokens)
        self.heard.append(("answered", slot, prompt, matched, num_input, cached, output))

    def failed(self, slot, prompt, now):
        self.heard.append(("failed", slot, prompt))


class Requests:
    """Does to loads and observer what the router does, in its order."""

    def __init__(self, observer) -> None:
        self.observer = observer

    def send(
        self,
        replica: Replica,
        prompt: PromptKeys = NO_KEYS,
        *,
        uncached: int = 100,
        matched: int | None = None,
        tokens: TokenPrompt | None = None,
        now: float = 0.0,
    ) -> Dispatch:
        request = RoutingRequest("m", prompt, tokens, now=now, input_tokens=2 * uncached)
        if matched is not None:
            request.matched_tokens = [matched]
        dispatch = Dispatch(request, (replica,), Decision(replica, "test", "told to"), 0)
        dispatch.work = Work(uncached, 0.0, 2 * uncached, is_stream=True)
        replica.load.begin(dispatch, dispatch.work, now)
        self.observer.sent(dispatch)
        return dispatch

    def first_token(self, dispatch: Dispatch, now: float = 0.0) -> None:
        dispatch.first_at = now
        dispatch.replica.load.first_token(dispatch, now)
        self.observer.first_token(dispatch)

    def answer(self, dispatch: Dispatch, usage=(None, None, None), now: float = 0.0) -> None:
        dispatch.input_tokens, dispatch.cached_tokens, dispatch.output_tokens = usage
        dispatch.is_answered = True
        self.observer.answered(dispatch)
        self.end(dispatch, now)

    def end(self, dispatch: Dispatch, now: float = 0.0) -> None:
        dispatch.ended_at = now
        dispatch.replica.load.end(dispatch, dispatch.work, now)
        self.observer.ended(dispatch)


def own(*replicas: Replica) -> RemoteLoad:
    """What processes have open of their own on a replica, which each of them has an object for."""
    loads = [replica.load.own() for replica in replicas]
    return RemoteLoad(
        sum(load.in_flight for load in loads),
        sum(load.num_pending for load in loads),
        sum(load.pending_tokens for load in loads),
        sum(load.active_tokens for load in loads),
    )


def remote(replica: Replica) -> RemoteLoad:
    """What others have open there, by the difference that it makes."""
    load, ours = replica.load, replica.load.own()
    return RemoteLoad(
        load.in_flight - ours.in_flight,
        load.num_pending - ours.num_pending,
        load.pending_tokens - ours.pending_tokens,
        load.active_tokens - ours.active_tokens,
    )

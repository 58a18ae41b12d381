"""What an exchange has to do with tokens: ask for its own, and let them be checked."""

from collections.abc import Callable

from headstart.gateway.prepare import CHAT_PATH, PreparedRequest
from headstart.gateway.token_checks import TokenChecks
from headstart.gateway.token_worker import TokensCallback, TokenTicket
from headstart.gateway.tokenising import Tokenising
from headstart.prompt.fingerprint import PromptKeys

Sample = Callable[[], None]
"""Has a request that was answered compared with its engine."""


class TokenSide:
    """The tokens of one gateway process's requests.

    Args:
        tokenising: makes and remembers them.
        checks: finds out whose engines agree.
    """

    __slots__ = ("_checks", "_tokenising")

    def __init__(self, tokenising: Tokenising, checks: TokenChecks) -> None:
        self._tokenising = tokenising
        self._checks = checks

    def needs_tokens(self, model: str) -> bool:
        """Return whether a request's tokens are of use to anybody."""
        return self._tokenising.needs_tokens(model)

    def key_of(
        self, model: str, prompt: PromptKeys, tail: bytes, ending: bytes = b""
    ) -> bytes | None:
        """Return what a prompt's tokens are known by; None if it is too short to matter."""
        return self._tokenising.key_of(model, prompt, tail, ending)

    def find(
        self, prepared: PreparedRequest, path: str, callback: TokensCallback
    ) -> TokenTicket | None:
        """Fill in the tokens of a request; return a ticket if it has to wait for them.

        Args:
            prepared: that has a `token_key`.
            path: of the request.
            callback: hears the tokens of a request that waits.
        """
        key = prepared.token_key
        assert key is not None
        found = self._tokenising.lookup(key)
        if found is not None:
            prepared.tokens = found[0]
            return None
        return self._tokenising.submit(
            key,
            prepared.model,
            prepared.body,
            callback,
            is_chat=path == CHAT_PATH,
            cache_salt=prepared.cache_salt,
        )

    def sample(self, slot: int, path: str, prepared: PreparedRequest) -> Sample | None:
        """Return what to call once a request that goes to a replica now was answered, if anything.

        It holds on to the body until then.
        """
        if prepared.token_key is None or not self._checks.wants_sample(slot):
            return None
        model, body, checks = prepared.model, prepared.body, self._checks
        return lambda: checks.sample(slot, path, model, body)

    def answered(self, slot: int, prepared: PreparedRequest, input_tokens: int | None) -> None:
        """Compare the number of tokens with the engine's; None is unknown."""
        if prepared.tokens is not None and input_tokens is not None:
            self._checks.answered(slot, prepared.tokens, input_tokens)

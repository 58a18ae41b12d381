"""An engine that says what a test tells it to, through the real engine's interface.

A random model never writes a tool call and never fails on demand; everything around it (tokenizer,
template, threads, server) is the real thing.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from headstart.engines.embedded.gguf import load_chat_template, load_tokenizer
from headstart.engines.embedded.request import GenerationOutput
from headstart.engines.embedded.statistics import EngineStatistics


class ScriptedEngine:
    """Answers each request with the same pieces of text, one per step, from a thread."""

    def __init__(
        self,
        model: Path,
        pieces: Sequence[str],
        *,
        finish_reason: str = "stop",
        error: str | None = None,
        holds: bool = False,
    ):
        self.tokenizer = load_tokenizer(model)
        self.chat_template_source = load_chat_template(model)
        self.context_length = 4096
        self.bos_token = self.eos_token = None
        self.bos_token_id = None
        self.add_bos_token = False
        self.is_running = True
        self.prompts = []
        self.aborted = threading.Event()
        self._pieces = pieces
        self._finish_reason = finish_reason
        self._error = error
        self._holds = holds

    def submit(self, request, callback):
        self.prompts.append(request)
        threading.Thread(target=self._answer, args=(request, callback)).start()

    def abort(self, request_id):
        self.aborted.set()

    def statistics(self):
        return EngineStatistics(0, 0, 0.0, 8, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def _answer(self, request, callback):
        for at, piece in enumerate(self._pieces):
            is_last = at == len(self._pieces) - 1 and not self._error and not self._holds
            callback(self._output(request, at + 1, piece, self._finish_reason if is_last else None))
        if self._error:
            last = self._output(request, len(self._pieces), "", "abort", self._error)
            callback(last)

    def _output(self, request, num, text, reason, error=None):
        return GenerationOutput(
            request.request_id, text, (num,), reason, len(request.prompt_token_ids), 0, num, error
        )

"""An engine that answers when the test says so."""

import asyncio

from loopback import PLAIN, Received, Wire


class Held:
    """An answer that waits to be let go; counts how many do.

    Attributes:
        texts: the prompts that came, in order.
        most: requests that were held at the same time, at most.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.most = 0
        self._going: list[asyncio.Event] = []
        self._is_open = False

    @property
    def num_held(self) -> int:
        return len(self._going)

    async def __call__(self, request: Received, wire: Wire) -> None:
        self.texts.append(request.json()["messages"][0]["content"])
        if not self._is_open:
            go = asyncio.Event()
            self._going.append(go)
            self.most = max(self.most, self.num_held)
            await go.wait()
        await wire.answer(200, PLAIN)

    def let_go(self) -> None:
        """Answer the one that has been held for longest."""
        self._going.pop(0).set()

    def open(self) -> None:
        """Hold nobody any more."""
        self._is_open = True
        while self._going:
            self.let_go()

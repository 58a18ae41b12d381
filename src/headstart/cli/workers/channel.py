"""Messages over a socket pair: four bytes of length, then MessagePack."""

import asyncio
import contextlib
import socket
from typing import Final, Generic, TypeVar

import msgspec

_LENGTH_BYTES: Final = 4

_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Ten times a report on the largest number of series that is sensible."""

Incoming = TypeVar("Incoming")


class Channel(Generic[Incoming]):
    """One end of the pair; open it with `open_channel`.

    Args:
        reader: of the socket.
        writer: of the socket.
        incoming: what the other end sends: a union of tagged structs.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: object
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)

    @property
    def is_clear(self) -> bool:
        """The other end has taken all that was sent: whoever waits for this stays bounded."""
        return self._writer.transport.get_write_buffer_size() == 0

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; without effect once the other end is gone."""
        self.send_bytes(self._encoder.encode(message))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that `receive_bytes` returns as they are."""
        assert len(data) <= _MAX_MESSAGE_BYTES
        if not self._writer.is_closing():
            self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    async def receive(self) -> Incoming | None:
        """Return the next message; None once the other end is gone."""
        data = await self.receive_bytes()
        return None if data is None else self._decoder.decode(data)

    async def receive_bytes(self) -> bytes | None:
        """Return the next message undecoded; None once the other end is gone."""
        try:
            head = await self._reader.readexactly(_LENGTH_BYTES)
            length = int.from_bytes(head, "big")
            assert length <= _MAX_MESSAGE_BYTES
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self, *, within_s: float) -> None:
        """Send what is left, for at most `within_s`, and close."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(within_s):
                await self._writer.wait_closed()


async def open_channel(end: socket.socket, incoming: object) -> Channel[Incoming]:
    """Take one end of a socket pair over.

    Args:
        end: one end; the channel closes it.
        incoming: what the other end sends.
    """
    reader, writer = await asyncio.open_unix_connection(sock=end)
    return Channel(reader, writer, incoming)

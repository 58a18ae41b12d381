"""Which of our replicas others mean."""

from hashlib import blake2b

from headstart.routing.replica import Replica
from headstart.wire.gossip import REPLICA_ID_BYTES


def replica_id(name: str, url: str, host: str) -> bytes:
    """Return what a replica is called between processes.

    Two gateways mean the same engine if they give it the same name and address. An address that
    leads nowhere outside its machine counts together with that machine.

    Args:
        name: as configured; prefixes are hashed onto the ring by it.
        url: as configured.
        host: this machine, if `url` leads to it and is a different one elsewhere; else empty.
    """
    digest = blake2b(digest_size=REPLICA_ID_BYTES, person=b"replica")
    for text in (name, url, host):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


class Roster:
    """Our replicas and what they are called between processes.

    A replica that was taken out and put in again is another one of the same name while the first
    still ends its requests: the name means the newest.
    """

    __slots__ = ("_ids", "_replicas")

    def __init__(self) -> None:
        self._ids: dict[Replica, bytes] = {}
        self._replicas: dict[bytes, Replica] = {}

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All of them."""
        return tuple(self._ids)

    def add(self, replica: Replica, its_id: bytes) -> None:
        """Take a replica in, in the place of one that is called the same."""
        before = self._replicas.get(its_id)
        if before is not None:
            del self._ids[before]
        self._ids[replica] = its_id
        self._replicas[its_id] = replica

    def remove(self, replica: Replica) -> None:
        """Take a replica out; what others tell about it concerns nobody then."""
        its_id = self._ids.pop(replica, None)
        if its_id is not None:
            del self._replicas[its_id]

    def id_of(self, replica: Replica) -> bytes | None:
        """Return what it is called; None if it is not ours any more."""
        return self._ids.get(replica)

    def replica_of(self, its_id: bytes) -> Replica | None:
        """Return who is meant; None if it is none of ours."""
        return self._replicas.get(its_id)

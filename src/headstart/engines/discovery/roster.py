"""The list of replicas that there should be.

It is made of what the configuration names, what sources list and what the operator says. Whoever
fronts them (`apply`) is told the whole list whenever it changes. In case of doubt a replica stays:
one that is no more is found by its health check, while one that is missing costs its share of the
service.

    a source fails             what it listed last stands, for as long as it fails
    a source lists none        likewise for half a minute, then they go
    a source leaves one out    it goes after the source's own grace
    two list one address       the first of them counts; so it is with names
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from headstart.clock import Clock, SystemClock
from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.source import Source, check_name
from headstart.engines.origin import Address, parse_address
from headstart.errors import BadRequest, Conflict, HeadstartError

_log = logging.getLogger(__name__)

_EMPTY_GRACE_S: Final = 30.0
"""Longer than a rolling restart of a single replica, or an empty answer of a server that itself
has just started."""

MAX_REPLICAS: Final = 1024
"""More than any gateway fronts; a source gone wild must not fill the memory."""

_ADMIN: Final = "the admin port"
_SYSTEM_CLOCK: Final = SystemClock()


class Apply(Protocol):
    """Who fronts the replicas (`Gateway.set_replicas`, `Crew.set_replicas`)."""

    def __call__(self, replicas: Sequence[ReplicaConfig], /, *, cut: Collection[str] = ...) -> None:
        """Front these from now on; those in `cut` do not get the time to finish."""
        ...


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source at one moment.

    Attributes:
        label: what people call it.
        num_replicas: how many it contributes, those of the last good list included.
        trouble: what is wrong with it, in words for people; empty if nothing is.
    """

    label: str
    num_replicas: int
    trouble: str


@dataclass(slots=True)
class _Entry:
    """One replica of a listing; `until` is when it goes, if it is not listed again."""

    config: ReplicaConfig
    until: float = inf


class Listing:
    """What one source lists, and what it listed last; a `SourceListener`.

    Args:
        label: of the source.
        grace_s: for a replica that is left out.
        clock: monotonic readings.
        changed: called after each change.

    Attributes:
        label: as given.
        trouble: see `SourceStatus`.
        reported: set once the source has said anything.
    """

    def __init__(
        self, label: str, grace_s: float, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        self.label = label
        self.trouble = ""
        self.reported = asyncio.Event()

    @property
    def replicas(self) -> list[ReplicaConfig]:
        """What it contributes."""
        return [entry.config for entry in self._entries.values()]

    def found(self, replicas: Sequence[ReplicaConfig]) -> None:
        """Hear all that the source lists now."""
        grace_s = self._grace_s if replicas else max(self._grace_s, _EMPTY_GRACE_S)
        until = self._clock.monotonic() + grace_s
        entries = {config.name: _Entry(config) for config in replicas[:MAX_REPLICAS]}
        for name, entry in self._entries.items():
            if name not in entries and len(entries) < MAX_REPLICAS:
                entry.until = min(entry.until, until)
                entries[name] = entry
        self._entries = entries
        self._report("" if replicas else "it lists no replica")

    def failed(self, reason: str) -> None:
        """Hear that the source could not be asked."""
        self._report(reason)

    def expire(self, now: float) -> bool:
        """Let those go whose grace is over; tells whether there were any."""
        late = [name for name, entry in self._entries.items() if entry.until <= now]
        for name in late:
            del self._entries[name]
        return bool(late)

    def _report(self, trouble: str) -> None:
        self.expire(self._clock.monotonic())
        self._say(trouble)
        self._changed()
        self.reported.set()

    def _say(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            kept = f"; {len(self._entries)} of its replicas are kept" if self._entries else ""
            _log.warning("source %s: %s%s", self.label, trouble, kept)
        else:
            _log.info("source %s lists %d replicas", self.label, len(self._entries))


class Roster:
    """Who should be fronted.

    Args:
        static: the replicas that the configuration names; `apply` has these already.
        apply: told the whole list after each change.
        clock: monotonic readings.
    """

    def __init__(
        self, static: Sequence[ReplicaConfig], apply: Apply, clock: Clock = _SYSTEM_CLOCK
    ) -> None:
        self._static = tuple(static)
        self._apply = apply
        self._clock = clock
        self._added: dict[str, ReplicaConfig] = {}
        self._removed: set[str] = set()
        self._listings: list[Listing] = []
        self._refused: frozenset[str] = frozenset()
        self._applied = self._static

    @property
    def replicas(self) -> tuple[ReplicaConfig, ...]:
        """All that there should be, as last applied."""
        return self._applied

    def sources(self) -> list[SourceStatus]:
        """Return the state of each source, in order."""
        return [
            SourceStatus(listing.label, len(listing.replicas), listing.trouble)
            for listing in self._listings
        ]

    def listing(self, source: Source) -> Listing:
        """Make room for what `source` lists."""
        listing = Listing(source.label, source.grace_s, self._clock, self._settle)
        self._listings.append(listing)
        return listing

    def add(self, config: ReplicaConfig) -> None:
        """Add a replica on the operator's word, until it is removed or the gateway ends.

        Raises:
            BadRequest: its name or URL cannot be used.
            Conflict: its name or address is in use, or there are too many.
        """
        check_name(config.name)
        address = _address(config)
        for other in self._applied:
            if other.name == config.name:
                raise Conflict(
                    f"There is a replica {config.name!r} already, at {other.url}; remove it "
                    "first, or choose another name.",
                    param="name",
                )
            if _address(other) == address:
                raise Conflict(
                    f"The replica {other.name!r} is at that address already.", param="url"
                )
        if len(self._applied) >= MAX_REPLICAS:
            raise Conflict(f"There are {MAX_REPLICAS} replicas already; remove one first.")
        self._added[config.name] = config
        self._settle()

    def remove(self, name: str, *, is_now: bool = False) -> None:
        """Remove a replica on the operator's word, wherever it came from.

        One that a source lists stays away until the source has once not listed it, one of the
        configuration until the gateway ends; the operator can add another one of that name.

        Args:
            name: nothing happens if there is none of that name.
            is_now: what it was sent does not get the time to finish; also if it is leaving already.
        """
        self._added.pop(name, None)
        self._removed.add(name)
        self._settle(cut={name} if is_now else frozenset())

    def sweep(self) -> None:
        """Let those go whose grace is over; call it every second or so."""
        now = self._clock.monotonic()
        if any(listing.expire(now) for listing in self._listings):
            self._settle()

    def _settle(self, *, cut: Collection[str] = frozenset()) -> None:
        """Find out who should be there now, and tell if that is new."""
        self._removed &= {config.name for _label, config in self._listed()}
        wanted = {config.name: config for config in self._wanted()}
        if cut or wanted != {config.name: config for config in self._applied}:
            self._applied = tuple(wanted.values())
            self._apply(self._applied, cut=cut)

    def _listed(self) -> Iterator[tuple[str, ReplicaConfig]]:
        """All that is named anywhere but on the admin port, with who names it."""
        yield from (("", config) for config in self._static)
        for listing in self._listings:
            yield from ((listing.label, config) for config in listing.replicas)

    def _wanted(self) -> Iterator[ReplicaConfig]:
        names: set[str] = set()
        addresses: set[Address] = set()
        refused: dict[str, str] = {}
        added = ((_ADMIN, config) for config in self._added.values())
        listed = (
            (label, config) for label, config in self._listed() if config.name not in self._removed
        )
        # The operator's word first: a source may yet come to list what it names.
        for label, config in (*added, *listed):
            try:
                # The configuration was checked, and an address twice in it is a wish.
                address = _checked(config, names, addresses if label else set())
                if len(names) >= MAX_REPLICAS:
                    raise Conflict(f"there are {MAX_REPLICAS} replicas already")
            except HeadstartError as error:
                refused[f"{label or 'the configuration'}: {config.name}"] = error.message
                continue
            names.add(config.name)
            addresses.add(address)
            yield config
        for place in refused.keys() - self._refused:
            _log.warning("%s is not used: %s", place, refused[place])
        self._refused = frozenset(refused)


def _checked(
    config: ReplicaConfig, names: Collection[str], addresses: Collection[Address]
) -> Address:
    check_name(config.name)
    address = _address(config)
    if config.name in names:
        raise Conflict("another replica has that name")
    if address in addresses:
        raise Conflict("another replica is at that address")
    return address


def _address(config: ReplicaConfig) -> Address:
    try:
        return parse_address(config.url)
    except HeadstartError as error:
        raise BadRequest(error.message, param="url") from error

"""What the gateway learns of its replicas' caches, put together for one process.

    Router ──> PrefixView <── KvFeed      KV events, capacity
      │            ^
      │            └───────── TokenChecks whether our tokens are the engine's
      └──> Gossip             what other processes dispatched

A policy that asks no index needs nothing but the router.
"""

import logging
from dataclasses import dataclass, field

from headstart.clock import Clock
from headstart.engines.base import ReplicaConfig
from headstart.engines.kv_feed.capacity import KvCapacity
from headstart.engines.kv_feed.config import KvFeedConfig
from headstart.engines.kv_feed.feed import KvFeed
from headstart.engines.kv_feed.replica_feed import FedReplica
from headstart.engines.origin import Origin
from headstart.engines.tokenizers.config import TokenisingConfig
from headstart.gateway.cache_status import CacheStatus, ShadowStatus, cache_status, shadow_status
from headstart.gateway.gossip.mesh import Gossip
from headstart.gateway.gossip.plan import GossipPlan
from headstart.gateway.gossip.statistics import GossipStatistics
from headstart.gateway.model_tokens import ModelTokens
from headstart.gateway.token_side import TokenSide
from headstart.prefix.config import PrefixConfig
from headstart.prefix.trust_mode import TrustConfig
from headstart.prefix.view import PrefixView
from headstart.routing.build import build_router
from headstart.routing.config import RoutingConfig
from headstart.routing.replica import Replica
from headstart.types import JsonObject

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnowledgeConfig:
    """How replicas' caches are known.

    Attributes:
        prefix: the index.
        trust: how far it is believed.
        kv_feed: how events are read.
        tokenising: bounds of what is tokenised and remembered.
        gossip: whom this process tells what it dispatches; None if it is alone.
    """

    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    kv_feed: KvFeedConfig = field(default_factory=KvFeedConfig)
    tokenising: TokenisingConfig = field(default_factory=TokenisingConfig)
    gossip: GossipPlan | None = None


class Knowledge:
    """Router, index, event feeds, tokens and gossip of one process; a `ReplicaListener`.

    Build it inside a running event loop.

    Args:
        routing: policy and parameters.
        config: of the index and what feeds it.
        clock: monotonic readings; wall clock for lags and for templates that print the time.

    Attributes:
        view: what each replica holds.
        router: routes by it.
    """

    def __init__(self, routing: RoutingConfig, config: KnowledgeConfig, clock: Clock) -> None:
        self._clock = clock
        self.view = PrefixView(config.prefix, config.trust)
        self.router = build_router(routing, self.view)
        self._feed: KvFeed | None = None
        self._tokens: ModelTokens | None = None
        if self.router.uses_index:
            self._feed = KvFeed(self.view, config.kv_feed, clock)
            self._tokens = ModelTokens(config.tokenising, clock, self.view)
        self._gossip: Gossip | None = None
        if config.gossip is not None and self.router.uses_index:
            self._gossip = Gossip(config.gossip, self.view, clock)
            self.router.observer = self._gossip.observer

    @property
    def token_side(self) -> TokenSide | None:
        """What exchanges need to have prompts tokenised; None if no index is asked."""
        return None if self._tokens is None else self._tokens.side

    def start(self) -> None:
        """Begin to follow events and to gossip.

        Raises:
            ConfigError: the gossip's address cannot be bound.
        """
        if self._feed is not None:
            self._feed.start()
        if self._gossip is not None:
            self._gossip.start()

    async def close(self) -> None:
        """End every task; the requests have ended."""
        if self._gossip is not None:
            await self._gossip.close()
        if self._feed is not None:
            await self._feed.close()
        if self._tokens is not None:
            await self._tokens.close()

    def sweep(self, now: float) -> None:
        """Let time pass, and say what has changed.

        Args:
            now: monotonic seconds.
        """
        if self._tokens is None:
            return
        self.view.tick(now)
        for change in self.view.take_changes():
            _log.info(
                "what replica %s holds: %s, because: %s",
                *(change.replica, change.change.after.value, change.change.reason.value),
            )
        self._tokens.sweep()

    # For people.

    def cache_status(self, replica: Replica) -> CacheStatus | None:
        """Return what is known of a replica's cache; None if no index is asked."""
        if self._tokens is None or self._feed is None:
            return None
        return cache_status(
            self.view.statistics(replica.slot),
            self._feed.statistics_of(replica.slot),
            self._tokens.is_agreed(replica.slot),
        )

    def shadows(self) -> tuple[ShadowStatus, ...]:
        """Return what other policies would have done."""
        return tuple(shadow_status(shadow) for shadow in self.router.shadows)

    def gossip_statistics(self) -> GossipStatistics | None:
        """Return what was told and heard; None if this process is alone."""
        return None if self._gossip is None else self._gossip.statistics()

    # Replicas.

    def replica_added(self, replica: Replica, config: ReplicaConfig, origin: Origin) -> None:
        """Know a replica before it is sent anything."""
        self.router.add_replica(replica)
        if self._gossip is not None:
            self._gossip.add_replica(replica, config.url)
        if self._feed is not None and self._tokens is not None:
            self.view.set_capacity(replica.slot, config.kv_capacity_tokens, config.block_size)
            self._tokens.add_replica(replica.slot, config, origin)
            capacity = KvCapacity(config.kv_capacity_tokens, config.block_size)
            self._feed.add(
                FedReplica(
                    *(replica.name, replica.slot, config.kind, origin),
                    config.kv_events,
                    capacity,
                )
            )

    def replica_changed(self, replica: Replica, config: ReplicaConfig, origin: Origin) -> None:
        """Nothing that changes without a replica's leaving is known here."""

    def replica_returned(self, replica: Replica) -> None:
        """Read the events of what may be another process from the beginning."""
        if self._feed is not None and self._tokens is not None:
            self._feed.came_back(replica.slot)
            self._tokens.restarted(replica.slot)

    def replica_removed(self, replica: Replica) -> None:
        """Forget a replica after its last request."""
        if self._feed is not None and self._tokens is not None:
            self._feed.remove(replica.slot)
            self._tokens.remove_replica(replica.slot)
        if self._gossip is not None:
            self._gossip.remove_replica(replica)
        self.router.remove_replica(replica)

    def models_found(self, replica: Replica, models: dict[str, JsonObject]) -> None:
        """Hear what a replica's list of models says."""
        if self._tokens is not None:
            self._tokens.models_found(replica.slot, models)

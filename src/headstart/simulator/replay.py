"""Plays arrivals against a fleet in virtual time, through the gateway's own router.

Two queues of events: arrivals, in order, and the ends of engines' spans. An arrival is routed by
one of the gateways and submitted to the engine that it chose; an engine that gets to the end of a
span tells whose first token came and who is done, which the gateway that sent them hears at once.
What happens in caches is published to every gateway.

A request that follows another of its session is not sent before that one was answered.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from random import Random

import msgspec

from headstart.prefix.config import PrefixConfig
from headstart.prefix.view import PrefixView
from headstart.routing.dispatch import Dispatch
from headstart.routing.policy import Policy, RoutingRequest
from headstart.routing.replica import Replica
from headstart.routing.router import Router
from headstart.simulator.arrivals import Arrival
from headstart.simulator.engine import EngineModel, SimulatedEngine
from headstart.simulator.job import Job
from headstart.simulator.knowledge import SimulatedKnowledge
from headstart.simulator.mesh import Mesh
from headstart.simulator.outcome import Outcome, Seen, outcome
from headstart.simulator.prompts import SimulatedPrompt
from headstart.simulator.setup import Knowledge
from headstart.simulator.sight import DirectSight, EventSight, Sight

_Knowledge = SimulatedKnowledge | PrefixView

MakePolicy = Callable[[int], Policy]
"""A policy for the gateway of this number."""


class FleetModel(msgspec.Struct, frozen=True):
    """What is simulated beside the requests.

    Attributes:
        engine: what each replica is like.
        num_replicas: so many.
        num_gateways: each has a router of its own, which knows what it sent itself.
        event_delay_s: from a change in a cache to gateways' knowing of it.
        is_pinned: a session stays with one gateway; else each request comes to any.
        is_open_loop: no request waits for the answer before it.
        knowledge: what gateways know of caches.
        gossip_s: from a dispatch to the other gateways' knowing of it; 0: they never do.
    """

    engine: EngineModel
    num_replicas: int = 8
    num_gateways: int = 1
    event_delay_s: float = 0.0
    is_pinned: bool = False
    is_open_loop: bool = False
    knowledge: Knowledge = "events"
    gossip_s: float = 0.0


class _Gateway:
    __slots__ = ("replicas", "router")

    def __init__(self, policy: Policy, knowledge: _Knowledge, num_replicas: int) -> None:
        self.router = Router(policy, knowledge)
        self.replicas = tuple(Replica(f"replica-{slot}", slot=slot) for slot in range(num_replicas))
        for replica in self.replicas:
            self.router.add_replica(replica)


class Replay:
    """One run; made, run once, and read.

    Args:
        arrivals: in order.
        prompts: of their requests, in the same order.
        model: the fleet.
        make_policy: for each gateway.
        seed: of which gateway a request comes to.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        prompts: Sequence[SimulatedPrompt],
        model: FleetModel,
        make_policy: MakePolicy,
        seed: int = 0,
    ) -> None:
        self._arrivals = arrivals
        self._prompts = prompts
        self._model = model
        is_direct = model.event_delay_s <= 0.0
        self.engines = [
            SimulatedEngine(model.engine, records_events=not is_direct)
            for _ in range(model.num_replicas)
        ]
        # What events say is the same for every gateway.
        self._sight: Sight = (
            DirectSight(self.engines)
            if is_direct
            else EventSight(model.num_replicas, model.event_delay_s)
        )
        self._events: list[tuple[float, int]] = []  # an engine's slot, or -1 - a gateway's number
        self._mesh = Mesh(model.gossip_s, self._wake_at) if model.gossip_s > 0.0 else None
        self._gateways = [
            self._new_gateway(make_policy(number)) for number in range(model.num_gateways)
        ]
        if self._mesh is not None:
            self._mesh.start()
        self._rng = Random(f"gateways {seed}")
        self._dispatches: dict[int, tuple[_Gateway, Dispatch]] = {}
        self._held: dict[int, list[int]] = {}
        self._has_tokens = model.knowledge == "events"
        self._is_over = bytearray(len(arrivals))
        self.seen: list[Seen | None] = [None] * len(arrivals)

    def _new_gateway(self, policy: Policy) -> _Gateway:
        model = self._model
        engine = model.engine
        view: _Knowledge
        if model.knowledge == "approximate":
            view = PrefixView(PrefixConfig())
        else:
            view = SimulatedKnowledge(engine.block_tokens, self._sight, self.engines)
        gateway = _Gateway(policy, view, model.num_replicas)
        if isinstance(view, PrefixView) and policy.uses_index:
            for replica in gateway.replicas:
                capacity = engine.num_blocks * engine.block_tokens
                view.set_capacity(replica.slot, capacity, engine.block_tokens)
        if self._mesh is not None:
            shared = view if policy.uses_index else None
            self._mesh.add(gateway.router, gateway.replicas, shared)
        return gateway

    def _wake_at(self, at: float, gateway: int) -> None:
        heappush(self._events, (at, -1 - gateway))

    def run(self) -> None:
        """Play everything, until the last answer is complete."""
        arrivals, events, engines = self._arrivals, self._events, self.engines
        mesh, number, num = self._mesh, 0, len(arrivals)
        is_open = self._model.is_open_loop
        while number < num or events:
            if events and (number >= num or events[0][0] <= arrivals[number].at_s):
                at, slot = heappop(events)
                if mesh is not None:
                    mesh.pass_to(at)
                    if slot < 0:
                        mesh.tell(-1 - slot)
                        continue
                # An entry that is out of date names a time that the engine does not.
                if engines[slot].next_at == at:
                    self._advance(slot, at)
                continue
            arrival = arrivals[number]
            if mesh is not None:
                mesh.pass_to(arrival.at_s)
            after = -1 if is_open else arrival.after
            if after >= 0 and not self._is_over[after]:
                self._held.setdefault(after, []).append(number)
            else:
                self._send(number, arrival.at_s)
            number += 1

    def outcome(self, first: int = 0, objective_s: float = 1.0) -> Outcome:
        """Return the figures of all requests from number `first` on."""
        seen = [one for one in self.seen[first:] if one is not None]
        evicted = sum(engine.pool.num_evicted_blocks for engine in self.engines)
        return outcome(seen, self._model.num_replicas, evicted, objective_s)

    def _send(self, number: int, now: float) -> None:
        request, prompt = self._arrivals[number].request, self._prompts[number]
        job = Job(
            number,
            prompt.block_hashes,
            prompt.block_ids,
            request.input_tokens,
            request.output_tokens,
        )
        if not self.engines[0].fits(job):
            self.seen[number] = Seen(now, request.input_tokens)  # refused, as engines do
            self._end(number, now)
            return
        gateway = self._gateway_of(request.session)
        dispatch = gateway.router.send(
            RoutingRequest(
                "simulated",
                prompt.keys,
                prompt.tokens if self._has_tokens else None,
                prompt.keys.num_bytes,
                prompt.session,
                now,
            ),
            gateway.replicas,
        )
        slot = dispatch.replica.slot
        self.seen[number] = Seen(now, request.input_tokens, slot, dispatch.matched_tokens or 0)
        self._dispatches[number] = (gateway, dispatch)
        engine = self.engines[slot]
        before = engine.next_at
        engine.submit(job, now)
        if engine.next_at != before:
            self._note(slot, engine, now)

    def _gateway_of(self, session: int) -> _Gateway:
        gateways = self._gateways
        if len(gateways) == 1:
            return gateways[0]
        if self._model.is_pinned and session >= 0:
            return gateways[session % len(gateways)]
        return self._rng.choice(gateways)

    def _note(self, slot: int, engine: SimulatedEngine, now: float) -> None:
        """Publish what happened in an engine's cache, and look at it again when its span ends."""
        events = engine.pool.take_events()
        if events:
            self._sight.publish(slot, events, now)
        if engine.next_at < inf:
            heappush(self._events, (engine.next_at, slot))

    def _advance(self, slot: int, now: float) -> None:
        engine = self.engines[slot]
        engine.advance()
        self._note(slot, engine, now)
        for job in engine.firsts:
            one = self.seen[job.number]
            assert one is not None
            one.first_at, one.cached_tokens = now, job.cached_tokens
            gateway, dispatch = self._dispatches[job.number]
            gateway.router.first_token(dispatch, now)
        for job in engine.finished:
            self._finish(job, now)

    def _finish(self, job: Job, now: float) -> None:
        one = self.seen[job.number]
        assert one is not None
        one.ended_at, one.output_tokens = now, job.output_tokens
        gateway, dispatch = self._dispatches.pop(job.number)
        router = gateway.router
        router.answered(dispatch, job.input_tokens, job.cached_tokens, job.output_tokens, now)
        router.ended(dispatch, now)
        self._end(job.number, now)

    def _end(self, over: int, now: float) -> None:
        """Send what waited for a request's end."""
        self._is_over[over] = 1
        for number in self._held.pop(over, ()):
            self._send(number, now)

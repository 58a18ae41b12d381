"""docs/routing.md: its worked examples are what the code computes, its names are the code's."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from benchmarks.routing.simulated import prepared, simulate
from benchmarks.routing.workloads import workloads
from headstart.prefix.config import PrefixConfig
from headstart.prefix.stream_step import StreamStanding
from headstart.prefix.trust import TrustMode
from headstart.prefix.view import PrefixView
from headstart.prompt.fingerprint import PromptKeys, namespace, prompt_keys
from headstart.routing.build import build_router
from headstart.routing.config import ExpectedTtftConfig, PolicyName, PrefixHashConfig, RoutingConfig
from headstart.routing.dispatch import Dispatch
from headstart.routing.expected_ttft import ExpectedTtft
from headstart.routing.load import Work
from headstart.routing.policy import Decision, RoutingRequest
from headstart.routing.rates import Rates
from headstart.routing.receipt import Receipt, compact_receipt, expand_receipt
from headstart.routing.replica import Replica

PAGE = (Path(__file__).parent.parent / "docs" / "routing.md").read_text(encoding="utf-8")


def prompt(system: str, question: str) -> PromptKeys:
    parts = [msgspec.json.encode({"role": "system", "content": system})]
    parts.append(msgspec.json.encode({"role": "user", "content": question}))
    return prompt_keys(parts, namespace("llama", ""))


RULES = "Be brief. " * 240
OTHER = prompt("Be thorough. " * 190, "And a block? " * 15)
FIRST, SECOND = prompt(RULES, "What is a prefix? " * 12), prompt(RULES, "And a block? " * 15)


def view_of_two() -> PrefixView:
    view = PrefixView(PrefixConfig())
    for slot, name in enumerate("ab"):
        view.add_replica(slot, name)
        view.set_capacity(slot, 100_000, 16)
    return view


def serve(view: PrefixView, sent: PromptKeys, cached: int, now: float) -> int:
    """Send to `a`, which counts 700 tokens; return what was predicted."""
    (matched,) = view.match(sent, None, [0], now)
    view.dispatched(0, sent, None, now)
    view.answered(0, sent, None, matched, 700, cached, 20, now + 1.0)
    return matched


def index_example() -> list[str]:
    view = view_of_two()
    rows = [f"first prompt   blocks end at {FIRST.ends}, {FIRST.num_bytes} bytes"]
    rows.append(f"second prompt  blocks end at {SECOND.ends}, {SECOND.num_bytes} bytes")
    shared = sum(one == other for one, other in zip(FIRST.keys, SECOND.keys, strict=False))
    rows.append(f"equal keys     {shared}")
    serve(view, FIRST, 0, 1.0)
    matched = view.match(SECOND, None, [0, 1], 3.0)
    rows.append(f"matched        a {matched[0]} tokens, b {matched[1]}")
    return rows


def trust_example() -> list[str]:
    view, rows = view_of_two(), []

    def note(now: float, what: str) -> None:
        trust = view.statistics(0).trust
        rows.append(f"{now:5.1f} s  {what:42} {trust.mode.value:12} {trust.reason.value}")

    note(0.0, "nothing heard")
    view.tokens_agree(0, True, 1.0)
    view.stream_standing(0, 0, StreamStanding.COMPLETE, None, 1.0)
    note(1.0, "stream whole, tokens are the engine's")
    view.stream_standing(0, 0, StreamStanding.REPLAYING, None, 60.0)
    note(60.0, "batch 812 came after 809")
    view.stream_standing(0, 0, StreamStanding.COMPLETE, None, 60.2)
    note(60.2, "810 and 811 were replayed")
    view.stream_standing(0, 0, StreamStanding.LOST, None, 90.0)
    note(90.0, "connection lost")
    return rows


def calibration_example() -> list[str]:
    view, rows = view_of_two(), []
    for now, name, sent, cached in (
        (1.0, "first", FIRST, 0),
        (10.0, "other", OTHER, 0),
        (20.0, "first", FIRST, 688),
        (30.0, "first", FIRST, 0),
    ):
        predicted = serve(view, sent, cached, now)
        figures = view.statistics(0).calibration
        left = view.match(OTHER, None, [0], now + 2.0)[0]
        rows.append(
            f"{now:4.0f} s  {name}  predicted {predicted:3}  reported {cached:3}  "
            f"resets seen {figures.num_resets}  of `other` believed {left:3}"
        )
    return rows


RATES = Rates(base_s=0.02, linear_s=1e-4, attention_s=0.0, interference=0.0, output_s=0.0)
CONFIG = ExpectedTtftConfig()


class Fleet:
    """Three replicas, two of which are busy: r0 holds most of the prompt."""

    def __init__(self) -> None:
        self.policy = ExpectedTtft(CONFIG, PrefixHashConfig())
        self.replicas = tuple(Replica(f"r{slot}", slot=slot) for slot in range(3))
        for replica in self.replicas:
            replica.load.set_rates(RATES)
        self.ask()  # the moving average of a whole prompt's prefill is this prompt's
        for replica, assigned in zip(self.replicas, (40_000, 36_000, 38_000), strict=True):
            replica.load.assigned_input_tokens = assigned
        for slot, tokens in ((0, 1000), (0, 1000), (2, 1000)):
            self.send(slot, tokens)

    def send(self, slot: int, tokens: int) -> None:
        self.replicas[slot].begin(0)
        self.replicas[slot].load.begin(object(), Work(tokens, 0.0, 0, is_stream=True), 10.0)

    def request(self) -> RoutingRequest:
        return RoutingRequest(
            "llama",
            now=10.0,
            input_tokens=4000,
            matched_tokens=[3900, 0, 2000],
            modes=[TrustMode.APPROXIMATE] * 3,
        )

    def ask(self) -> Decision:
        return self.policy.choose(self.request(), self.replicas)


def price_rows(fleet: Fleet) -> list[str]:
    decision, rows = fleet.ask(), []
    mean = sum(replica.load.in_flight for replica in fleet.replicas) / 3
    mean_assigned = sum(replica.load.assigned_input_tokens for replica in fleet.replicas) / 3
    for replica, matched, price in zip(
        fleet.replicas, (3900, 0, 2000), decision.prices, strict=True
    ):
        load = replica.load
        wait, own = load.wait_s(10.0), (4000 - matched) * 1e-4
        surcharge = own * (CONFIG.prefill_surcharge + (load.num_pending if wait else 0))
        relative = 0.4 * load.in_flight / (mean + 2)
        balance = 0.4 * load.assigned_input_tokens / (mean_assigned + 4001)
        assert price == pytest.approx(wait + own + surcharge + 0.02 + relative + balance)
        rows.append(
            f"{replica.name}  wait {wait:.2f}  prefill {own:.2f}  surcharge {surcharge:.2f}  "
            f"base 0.02  load {relative:.2f}  balance {balance:.2f}  price {price:.2f}"
            f"{'  <- chosen' if replica is decision.replica else ''}"
        )
    return rows


def price_example() -> list[str]:
    return price_rows(Fleet())


def spread_example() -> list[str]:
    fleet = Fleet()
    fleet.send(0, 3000)
    return price_rows(fleet)


def receipt_dispatch() -> Dispatch:
    fleet = Fleet()
    decision, loads = fleet.ask(), [replica.load for replica in fleet.replicas]
    return Dispatch(
        fleet.request(),
        fleet.replicas,
        decision,
        0,
        [load.in_flight for load in loads],
        [load.pending_tokens for load in loads],
        first_at=10.24,
        input_tokens=4003,
        cached_tokens=3888,
        output_tokens=120,
        ended_at=11.5,
    )


def receipt_example() -> list[str]:
    return [compact_receipt(receipt_dispatch()).decode()]


EXAMPLES = {
    "index": index_example,
    "trust": trust_example,
    "calibration": calibration_example,
    "price": price_example,
    "spread": spread_example,
    "receipt": receipt_example,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_what_the_code_computes(name):
    """To the last figure, in the block below its mark."""
    found = re.search(rf"<!-- example: {name} -->\n```\n(.*?)\n```", PAGE, re.DOTALL)
    assert found is not None, f"the page has no example {name}"
    assert found[1].splitlines() == [row.rstrip() for row in EXAMPLES[name]()]


@pytest.mark.parametrize("name", get_args(PolicyName))
def test_every_policy_is_described(name):
    """In the table of policies, and it can be built."""
    assert f"| `{name}` |" in PAGE
    assert build_router(RoutingConfig(policy=name), PrefixView()).policy.name == name


@pytest.mark.parametrize("name", [field.name for field in fields(ExpectedTtftConfig)])
def test_every_weight_is_described(name):
    """With its default."""
    default = getattr(CONFIG, name)
    assert f"| `{name}` | {default:g} |" in PAGE


@pytest.mark.parametrize(
    "name",
    [name for name in Receipt.__struct_fields__ if name != "candidates"]
    + ["matched_tokens", "error_tokens"],
)
def test_every_field_of_a_receipt_is_described(name):
    """In the order of the compact form, and those that the full form adds."""
    assert f"`{name}`" in PAGE
    assert name in expand_receipt(compact_receipt(receipt_dispatch()))


def test_the_measured_table_is_what_the_simulation_gives():
    """For the default policy, to a point of the hit ratio and a tenth of the busiest share."""
    row = re.search(r"^\| expected_ttft \| (.+) \|$", PAGE, re.MULTILINE)
    assert row is not None
    for workload, cell in zip(workloads(1), row[1].split(" | "), strict=True):
        hit_ratio, busiest, _ = (float(figure) for figure in cell.split(" / "))
        outcome = simulate(
            prepared(workload),
            workload.num_clients,
            lambda _: build_router(RoutingConfig(), PrefixView()),
        )
        assert outcome.hit_ratio == pytest.approx(hit_ratio, abs=0.01)
        assert outcome.busiest_share == pytest.approx(busiest, abs=0.1)

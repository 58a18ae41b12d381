"""The admin port, over real HTTP, against a gateway whose state the test sets."""

from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import quote

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder
from headstart.engines.discovery.roster import Roster
from headstart.errors import NotFound
from headstart.gateway.admin import AdminServer
from headstart.gateway.overview import Overview
from headstart.gateway.process import process_status
from headstart.gateway.state import GatewayStatus, ReplicaStatus
from headstart.routing.health import HealthState

UP = ReplicaStatus(
    *("a", "http://u:secret@10.0.0.1:8000", "vllm", ("m",), True, "", 2, 4096, 3, 5),
    state="available",
)
DOWN = ReplicaStatus(
    *("b", "http://10.0.0.2", "vllm", (), False, "connection refused", 0, 0, 0, 0),
    state="down",
    transitions={"down": 2, "available": 1},
)


STATUS = GatewayStatus(
    is_draining=False,
    is_ready=True,
    num_open_requests=2,
    num_client_connections=5,
    replicas=(UP, DOWN),
)


class Source:
    """A gateway as the admin port sees it."""

    def __init__(self, **changes):
        self.gateway = replace(STATUS, **changes)
        self.orders = []

        self._roster = Roster([], self.take_replicas)

    def take_replicas(self, replicas, /, *, cut=frozenset()):
        self.orders.append(([each.name for each in replicas], set(cut)))

    def roster(self):
        return self._roster

    async def status(self):
        return self.gateway

    async def set_replica_draining(self, name, *, is_draining):
        names = [each.name for each in self.gateway.replicas]
        if name not in names:
            raise NotFound(f"no {name}; there are: {', '.join(names)}")
        self.orders.append((name, is_draining))

    async def overview(self):
        metrics = RequestMetrics()
        recorder = Recorder(observe=metrics.observe)
        recorder.record(
            RequestRecord(request_id="r", time_s=0.0, path="/", model="m", replica="a", status=200)
        )
        return Overview(
            gateway=self.gateway,
            requests=metrics.snapshot(),
            recorder=recorder.statistics(),
            processes=(process_status("gateway"),),
        )


@asynccontextmanager
async def admin(source=None, *, key=None, find_request=None):
    server = AdminServer(source or Source(), key=key, find_request=find_request)
    port = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await server.close()


async def test_health_is_about_the_process():
    """It answers as long as the process does, replicas or not."""
    async with admin(Source(is_ready=False)) as session, session.get("/health") as response:
        assert response.status == 200
        assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize(
    ("source", "status", "word"),
    [
        (Source(), 200, "ready"),
        (Source(is_ready=False), 503, "no replica"),
        (Source(is_ready=False, is_draining=True), 503, "draining"),
    ],
)
async def test_ready_is_about_taking_requests(source, status, word):
    """A load balancer stops sending before the process ends."""
    async with admin(source) as session, session.get("/ready") as response:
        assert response.status == status
        assert (await response.json())["status"] == word


async def test_replicas_are_listed_without_credentials():
    """Who, where, what, how busy, and why not."""
    async with admin() as session, session.get("/replicas") as response:
        up, down = (await response.json())["data"]
    assert up == {
        "name": "a",
        "url": "http://10.0.0.1:8000",
        "kind": "vllm",
        "models": ["m"],
        "is_available": True,
        "state": "available",
        "reason": "",
        "in_flight": 2,
        "in_flight_bytes": 4096,
        "idle_connections": 3,
        "connections": 5,
        "weight": 1.0,
        "cache": None,
    }
    assert (down["is_available"], down["reason"]) == (False, "connection refused")


async def test_a_request_is_shown_with_its_receipt():
    """Once its record is written, which may be a moment after its end."""
    looks = []

    def find(request_id):
        looks.append(request_id)
        if len(looks) < 3:
            return None
        record = RequestRecord(request_id, 0.0, "/v1/completions", replica="a", matched_tokens=48)
        return record, '["lmetric","least",64,2,[["a",48,"approximate",0,0,1.0]]]'

    async with admin(find_request=find) as session, session.get("/requests/r-1") as response:
        shown = await response.json()
    assert looks == ["r-1"] * 3
    assert (shown["request_id"], shown["replica"], shown["matched_tokens"]) == ("r-1", "a", 48)
    assert shown["receipt"]["policy"] == "lmetric"
    assert shown["receipt"]["candidates"][0]["matched_tokens"] == 48


async def test_an_unknown_request_is_404():
    """And so is one whose record was not kept."""
    for find in (None, lambda _request_id: None):
        async with admin(find_request=find) as session, session.get("/requests/r") as response:
            assert response.status == 404
            assert "'r'" in (await response.json())["error"]["message"]


async def test_metrics_hold_requests_gateway_replicas_and_process():
    """One scrape says everything."""
    async with admin() as session, session.get("/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["headstart_requests"].samples[0].value == 1
    assert families["headstart_open_requests"].samples[0].value == 2
    available = families["headstart_replica_available"].samples
    assert {sample.labels["replica"]: sample.value for sample in available} == {"a": 1, "b": 0}
    (memory,) = families["headstart_process_resident_memory_bytes"].samples
    assert memory.labels == {"process": "gateway"}
    assert memory.value > 1_000_000
    assert "process_cpu_seconds" in families
    assert "secret" not in text


async def test_metrics_show_each_replicas_state_and_how_often_it_came_to_it():
    """One series for each state, so that one that never was is a zero and not absent."""
    async with admin() as session, session.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        samples = {each.name: each.samples for each in families}
    shown = {
        name: {
            (each.labels["replica"], each.labels["state"])
            for each in samples[f"headstart_replica_{name}"]
            if each.value
        }
        for name in ("state", "transitions")
    }
    assert shown["state"] == {("a", "available"), ("b", "down")}
    assert shown["transitions"] == {("b", "down"), ("b", "available")}
    assert len(samples["headstart_replica_state"]) == 2 * len(HealthState)


@pytest.mark.parametrize("path", ["/metrics", "/replicas", "/nothing"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic right", "right", "Bearer ü"])
async def test_a_wrong_key_is_refused(path, header):
    """In the form of the OpenAI API, the same for every path."""
    headers = {} if header is None else {"Authorization": header}
    async with (
        admin(key="right") as session,
        session.get(path, headers=headers) as response,
    ):
        assert response.status == 401
        error = (await response.json())["error"]
    assert error["code"] == "invalid_api_key"
    assert error["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/metrics", "/replicas", "/health", "/ready"])
async def test_the_key_opens(path):
    """And the scheme's case does not matter."""
    async with (
        admin(key="right") as session,
        session.get(path, headers={"Authorization": "bearer right"}) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_need_no_key(path):
    """Kubernetes has none to send."""
    async with admin(key="right") as session, session.get(path) as response:
        assert response.status == 200


async def test_an_unknown_path_says_what_there_is():
    """A 404 in the form of the OpenAI API."""
    async with admin() as session, session.get("/metric") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "not_found"
    assert "/metrics" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/replicas", "GET and HEAD and POST"),
        ("GET", "/replicas/a/drain", "DELETE and POST"),
        ("POST", "/replicas/a", "DELETE"),
    ],
)
async def test_each_path_has_its_methods(method, path, allowed):
    """Others are refused in the same form."""
    async with admin() as session, session.request(method, path) as response:
        assert response.status == 405
        error = (await response.json())["error"]
        assert error["code"] == "bad_request"
        assert error["message"].endswith(f"answers {allowed} only")


@pytest.mark.parametrize("name", ["a", "10.0.0.1:8000", "[::1]:80", "with/slash", "drain"])
@pytest.mark.parametrize(("order", "is_draining"), [("drain", True), ("resume", False)])
async def test_a_replica_is_drained_and_resumed_by_name(name, order, is_draining):
    """Whatever is allowed in a name; the answer shows it."""
    source = Source(replicas=(replace(UP, name=name), DOWN))
    async with admin(source) as session:
        url = f"/replicas/{quote(name, safe='')}/{order}"
        async with session.post(URL(url, encoded=True)) as response:
            assert response.status == 200
            assert [each["name"] for each in (await response.json())["data"]] == [name]
    assert source.orders == [(name, is_draining)]


async def test_draining_a_replica_that_is_not_there_is_404():
    """With the names that are."""
    async with admin() as session, session.post("/replicas/nobody/drain") as response:
        assert response.status == 404
        assert "there are: a, b" in (await response.json())["error"]["message"]


async def test_orders_need_the_key():
    """As everything but the probes does."""
    source = Source()
    async with admin(source, key="k") as session, session.post("/replicas/a/drain") as response:
        assert response.status == 401
    assert source.orders == []


@pytest.mark.parametrize(("is_own", "status"), [(True, 200), (False, 403)])
async def test_another_sites_page_gives_no_orders(is_own, status):
    """A browser sends them for it, to a port on loopback that asks for no key."""
    async with admin() as session:
        origin = str(session._base_url).rstrip("/") if is_own else "http://evil.example"
        async with session.post("/replicas/a/drain", headers={"origin": origin}) as response:
            assert response.status == status
        async with session.delete("/replicas/a", headers={"origin": origin}) as response:
            assert response.status == status

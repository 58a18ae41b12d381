"""The admin port, over real HTTP, against a gateway whose state the test sets."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headstart.accounting.metrics import RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import Recorder
from headstart.gateway.admin import AdminServer
from headstart.gateway.state import ReplicaStatus

UP = ReplicaStatus("a", "http://u:secret@10.0.0.1:8000", "vllm", ("m",), True, "", 2, 4096, 3)
DOWN = ReplicaStatus("b", "http://10.0.0.2", "vllm", (), False, "connection refused", 0, 0, 0)


@dataclass
class State:
    """A gateway as the admin port sees it."""

    is_draining: bool = False
    is_ready: bool = True
    num_open_requests: int = 2
    num_client_connections: int = 5
    statuses: list[ReplicaStatus] = field(default_factory=lambda: [UP, DOWN])

    def replicas(self):
        return self.statuses


@asynccontextmanager
async def admin(state=None, *, key=None):
    metrics = RequestMetrics()
    recorder = Recorder(observe=metrics.observe)
    recorder.record(
        RequestRecord(request_id="r", time_s=0.0, path="/", model="m", replica="a", status=200)
    )
    server = AdminServer(state or State(), metrics, recorder, key=key)
    port = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await server.close()


async def test_health_is_about_the_process():
    """It answers as long as the process does, replicas or not."""
    async with admin(State(is_ready=False)) as session, session.get("/health") as response:
        assert response.status == 200
        assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize(
    ("state", "status", "word"),
    [
        (State(), 200, "ready"),
        (State(is_ready=False), 503, "no replica"),
        (State(is_ready=False, is_draining=True), 503, "draining"),
    ],
)
async def test_ready_is_about_taking_requests(state, status, word):
    """A load balancer stops sending before the process ends."""
    async with admin(state) as session, session.get("/ready") as response:
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
        "reason": "",
        "in_flight": 2,
        "in_flight_bytes": 4096,
        "idle_connections": 3,
    }
    assert (down["is_available"], down["reason"]) == (False, "connection refused")


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
    assert "process_cpu_seconds" in families
    assert "secret" not in text


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


async def test_only_reading_is_possible():
    """A POST is refused in the same form."""
    async with admin() as session, session.post("/replicas") as response:
        assert response.status == 405
        assert (await response.json())["error"]["code"] == "bad_request"

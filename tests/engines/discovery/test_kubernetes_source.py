"""`KubernetesSource` against an API server on a real socket."""

import asyncio
import ssl

import pytest
from heard import TEMPLATE, hearing
from kube_api import endpoint, endpoint_slice, kube_api

from certificates import make_certificate
from headstart.engines.discovery import kubernetes
from headstart.engines.discovery.kubernetes import KubernetesConfig, KubernetesSource

A = endpoint("10.0.0.1", pod="a")
B = endpoint("10.0.0.2", pod="b")
BOTH = ["default/a:8000", "default/b:8000"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Pauses keep a server that fails from being flooded; here it is one of our own."""
    monkeypatch.setattr(kubernetes, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(kubernetes, "_MAX_PAUSE_S", 0.01)


@pytest.fixture
def account(tmp_path):
    """A service account's folder, as it is mounted into every pod."""
    (tmp_path / "token").write_text("token-1\n")
    (tmp_path / "namespace").write_text("default")
    return tmp_path


def source(api, account, **more) -> KubernetesSource:
    config = KubernetesConfig("vllm", port="http", api_url=api.url, account_dir=account, **more)
    return KubernetesSource(config, TEMPLATE)


async def test_the_list_and_each_change_is_told(account):
    """Added, modified and deleted slices, from one list and one watch."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            await api.put(endpoint_slice("s2", B))
            assert await heard.names() == BOTH
            await api.put(endpoint_slice("s1"))
            assert await heard.names() == BOTH[1:]
            await api.put(endpoint_slice("s1", A))
            assert await heard.names() == BOTH
            await api.delete("s2")
            assert await heard.names() == BOTH[:1]
        assert (len(api.lists), len(api.watches)) == (1, 1)
        assert api.watches[0]["resourceVersion"] == "101"
        assert api.watches[0]["allowWatchBookmarks"] == "true"
        assert api.watches[0]["timeoutSeconds"] == "60"


async def test_what_happens_between_list_and_watch_is_not_missed(account):
    """The watch begins where the list ended."""
    async with kube_api() as api:
        watching = hearing(source(api, account))
        async with watching as heard:
            assert await heard.names() == []
            await api.put(endpoint_slice("s1", A))
            await api.put(endpoint_slice("s2", B))
            while await heard.names() != BOTH:
                pass


async def test_a_watch_that_ends_is_renewed_from_its_last_version(account):
    """A bookmark's counts, so that a quiet service need not be listed again."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            await api.bookmark()
            assert await heard.names() == BOTH[:1]
            await api.forget()  # all before the bookmark
            await api.end_watches()
            await api.put(endpoint_slice("s2", B))
            assert await heard.names() == BOTH
        assert len(api.lists) == 1
        first, *renewed = [watch["resourceVersion"] for watch in api.watches]
        assert first == "101"
        assert set(renewed) == {"102"}  # one that comes while the others end is ended with them


@pytest.mark.parametrize("refuses_old", [False, True])
async def test_a_version_that_is_forgotten_is_listed_anew_at_once(account, refuses_old):
    """410, as an event of the watch or as its status: nothing has failed."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            while not api.watches:
                await asyncio.sleep(0.001)
            api.refuses_old = refuses_old
            # Nobody is told of these, because the watch's version is forgotten meanwhile.
            api._slices = {"s2": endpoint_slice("s2", B)}
            api._version += 10
            await api.forget()
            await api.end_watches()
            assert await heard.names() == BOTH[1:]
        assert len(api.lists) == 2
        assert not any(isinstance(said, str) for said in heard.said)


async def test_a_broken_connection_is_said_and_made_anew(account):
    """The list that follows tells what was missed."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            while not api._open:
                await asyncio.sleep(0.001)
            await api.break_watches()
            assert f"cannot ask {api.url}" in await heard.failure()
            assert await heard.names() == BOTH[:1]
            await api.put(endpoint_slice("s2", B))
            assert await heard.names() == BOTH


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{nonsense", "cannot be read"),
        ({"type": "ADDED", "object": {"endpoints": 7}}, "cannot be read"),
        (
            {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}},
            "the watch failed: etcd is away",
        ),
    ],
)
async def test_what_cannot_be_used_is_said_and_listed_anew(account, line, said):
    """One bad event ends no watch for good."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            await api.raw(line)
            assert said in await heard.failure()
            assert await heard.names() == BOTH[:1]


async def test_events_of_kinds_to_come_are_let_pass(account):
    """The API may get more."""
    async with kube_api() as api, hearing(source(api, account)) as heard:
        assert await heard.names() == []
        await api.raw({"type": "HELLO", "object": {"metadata": {"resourceVersion": "1"}}})
        assert await heard.names() == []


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_a_refusal_says_what_is_needed_and_is_tried_again(account, status):
    """The token is in no message."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        api.status = status
        async with hearing(source(api, account)) as heard:
            reason = await heard.failure()
            assert str(status) in reason
            assert "token-1" not in reason
            assert ("needs get, list and watch" in reason) == (status in (401, 403))
            api.status = 200
            while isinstance(said := await heard.next(), str):
                pass
            assert [each.name for each in said] == BOTH[:1]


async def test_a_token_that_was_replaced_is_read_anew(account):
    """Kubernetes does so every hour."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert await heard.names() == BOTH[:1]
            while not api._open:
                await asyncio.sleep(0.001)
            api.token = "token-2"
            (account / "token").write_text("token-2")
            await api.end_watches()
            await api.put(endpoint_slice("s2", B))
            assert await heard.names() == BOTH


async def test_a_server_that_is_not_there_is_said_and_asked_again(account):
    """As while a control plane is upgraded."""
    async with kube_api() as api:
        url = api.url
    config = KubernetesConfig("vllm", api_url=url, account_dir=account)
    async with hearing(KubernetesSource(config, TEMPLATE)) as heard:
        for _ in range(3):
            assert f"cannot ask {url}" in await heard.failure()


async def test_a_watch_that_has_died_without_a_word_is_renewed(account, monkeypatch):
    """A connection can be dead for hours where nothing is sent on it."""
    monkeypatch.setattr(kubernetes, "_LATE_S", 0.05)
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account, watch_s=0)) as heard:
            assert await heard.names() == BOTH[:1]
            assert "no answer in time" in await heard.failure()
            assert await heard.names() == BOTH[:1]


async def test_a_port_that_no_endpoint_has_is_said(account):
    """Instead of a list without any."""
    async with kube_api() as api:
        await api.put(endpoint_slice("s1", A, ports=[{"name": "web", "port": 80}]))
        async with hearing(source(api, account)) as heard:
            assert await heard.failure() == "no endpoint has the port 'http'; there are: web (80)"


async def test_the_clusters_authority_is_trusted_and_no_other(account, tmp_path):
    """`ca.crt` of the service account."""
    cert, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with kube_api(context) as api:
        await api.put(endpoint_slice("s1", A))
        async with hearing(source(api, account)) as heard:
            assert "certificate" in await heard.failure()
            (account / "ca.crt").write_bytes(cert.read_bytes())
            while isinstance(said := await heard.next(), str):
                pass
            assert [each.name for each in said] == BOTH[:1]


def test_its_label_says_which_service():
    """For messages."""
    own = KubernetesSource(KubernetesConfig("vllm"), TEMPLATE)
    other = KubernetesSource(KubernetesConfig("vllm", namespace="ml"), TEMPLATE)
    assert (own.label, other.label) == ("kubernetes vllm", "kubernetes ml/vllm")

"""A Kubernetes API server as far as EndpointSlices go, on a real socket.

After https://kubernetes.io/docs/reference/using-api/api-concepts/: a list has a version; a watch
from a version sends what happened since, one JSON object a line, and from a version that is
forgotten an ERROR with code 410; bookmarks, if they are allowed, carry versions.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

HTTP_PORT = [{"name": "http", "port": 8000, "protocol": "TCP", "appProtocol": "http"}]


def endpoint(address, *, pod="vllm-0", conditions=None, **more) -> dict:
    one = {"addresses": [address], "nodeName": "node-1", "zone": "a", **more}
    if conditions is not None:
        one["conditions"] = conditions
    if pod is not None:
        one["targetRef"] = {"kind": "Pod", "namespace": "default", "name": pod, "uid": "1"}
    return one


def endpoint_slice(name, *endpoints, ports=None, address_type="IPv4", namespace="default") -> dict:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "vllm"},
        },
        "addressType": address_type,
        "endpoints": list(endpoints),
        "ports": HTTP_PORT if ports is None else ports,
    }


class KubeApi:
    """The server; a test changes slices and the watches hear of it.

    Attributes:
        token: what it wants to be shown.
        status: answered to everything, if it is not 200.
        lists, watches: the queries that came.
        forgets: versions up to this one are forgotten.
        refuses_old: an old version is refused with the status 410, and not with an event.
    """

    def __init__(self) -> None:
        self.token = "token-1"
        self.status = 200
        self.lists: list[dict] = []
        self.watches: list[dict] = []
        self.forgets = 0
        self.refuses_old = False
        self.url = ""
        self._version = 100
        self._slices: dict[str, dict] = {}
        self._log: list[tuple[int, dict]] = []
        self._news = asyncio.Condition()
        self._open: set[web.StreamResponse] = set()
        self._ends_watches = False

    async def put(self, *slices: dict) -> None:
        """Add or change slices."""
        for one in slices:
            kind = "MODIFIED" if one["metadata"]["name"] in self._slices else "ADDED"
            self._slices[one["metadata"]["name"]] = one
            await self._happened(kind, one)

    async def delete(self, name: str) -> None:
        """Delete a slice."""
        await self._happened("DELETED", self._slices.pop(name))

    async def bookmark(self) -> None:
        """Tell the watches a newer version, and nothing else."""
        await self._happened("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    async def raw(self, line: dict | str) -> None:
        """Send a line as it is."""
        self._version += 1
        await self._say(line)

    async def forget(self) -> None:
        """Forget every version so far."""
        self.forgets = self._version

    async def end_watches(self) -> None:
        """End all watches as after their time."""
        async with self._news:
            self._ends_watches = True
            self._news.notify_all()
        while self._open:
            await asyncio.sleep(0.001)
        self._ends_watches = False

    async def break_watches(self) -> None:
        """Drop the connections of all watches."""
        for response in list(self._open):
            response._req.transport.abort()
        await self.end_watches()

    async def _happened(self, kind: str, one: dict) -> None:
        self._version += 1
        one = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self._version)}}
        await self._say({"type": kind, "object": one})

    async def _say(self, line) -> None:
        async with self._news:
            self._log.append((self._version, line))
            self._news.notify_all()

    async def _slices_page(self, request: web.Request) -> web.StreamResponse:
        assert request.match_info["namespace"] == "default"
        query = dict(request.query)
        assert query["labelSelector"] == "kubernetes.io/service-name=vllm"
        if self.status != 200:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if query.get("watch") == "true":
            self.watches.append(query)
            return await self._watch(request, int(query["resourceVersion"]))
        self.lists.append(query)
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": str(self._version)},
                "items": list(self._slices.values()),
            }
        )

    async def _watch(self, request: web.Request, version: int) -> web.StreamResponse:
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        if version < self.forgets and self.refuses_old:
            return web.json_response(gone, status=410)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._open.add(response)
        try:
            if version < self.forgets:
                await response.write(_line({"type": "ERROR", "object": gone}))
                return response
            await self._send_all(response, version)
        finally:
            self._open.discard(response)
        return response

    async def _send_all(self, response: web.StreamResponse, version: int) -> None:
        at = next((i for i, (v, _) in enumerate(self._log) if v > version), len(self._log))
        while not self._ends_watches:
            # All that has happened, in two pieces: an event need not come whole.
            data = b"".join(_line(line) for _v, line in self._log[at:])
            at = len(self._log)
            if data:
                with contextlib.suppress(ConnectionError):
                    await response.write(data[:20])
                    await response.write(data[20:])
            async with self._news:
                while at == len(self._log) and not self._ends_watches:
                    await self._news.wait()


def _line(line) -> bytes:
    text = line if isinstance(line, str) else json.dumps(line)
    return text.encode() + b"\n"


@contextlib.asynccontextmanager
async def kube_api(tls: ssl.SSLContext | None = None) -> AsyncIterator[KubeApi]:
    """Start a server."""
    api = KubeApi()
    app = web.Application()
    app.router.add_get(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", api._slices_page
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    scheme, host = ("https", "localhost") if tls else ("http", "127.0.0.1")
    api.url = f"{scheme}://{host}:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()

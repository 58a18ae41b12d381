"""`headstart serve` on https, as official clients use it."""

import asyncio
import re
import signal
import ssl

import aiohttp
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from certificates import make_certificate
from served import serve


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_openai_client_speaks_https_to_it(engine, tmp_path, workers):
    """Plain and streaming; the admin port stays http on loopback."""
    cert, key = make_certificate(tmp_path)
    environment = {"HEADSTART_TLS_CERT_FILE": str(cert), "HEADSTART_TLS_KEY_FILE": str(key)}
    flags = ("--engine", engine.url, "--workers", workers, "--request-log", "off")
    async with serve(*flags, cwd=tmp_path, environment=environment) as served:
        assert served.data.startswith("https://")
        port = served.data.rpartition(":")[2]
        trust = ssl.create_default_context(cafile=str(cert))
        async with AsyncOpenAI(
            base_url=f"https://localhost:{port}/v1",
            api_key="unused",
            http_client=DefaultAsyncHttpxClient(verify=trust),
        ) as client:
            messages = [{"role": "user", "content": "hi"}]
            answer = await client.chat.completions.create(model="m", messages=messages)
            assert answer.choices[0].message.content == "hello"
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            words = [chunk.choices[0].delta.content async for chunk in stream]
            assert words == ["one", "two"]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{served.admin}/metrics") as response:
                assert re.search(r"headstart_requests_total\{.*\} 2", await response.text())
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://localhost:{port}/health")
        served.process.send_signal(signal.SIGTERM)
        status, _out = await served.end()
    assert status == 0


async def test_a_certificate_that_cannot_be_used_is_one_line(engine, tmp_path):
    """Before anything is started, with both files' names."""
    cert, _key = make_certificate(tmp_path)
    _cert, other = make_certificate(tmp_path, "other")
    (tmp_path / "headstart.yaml").write_text(f"tls: {{cert_file: {cert}, key_file: {other}}}\n")
    flags = ("--engine", engine.url, "--workers")
    for workers in ("1", "2"):
        with pytest.raises(AssertionError, match="does not belong to the certificate") as failure:
            async with asyncio.timeout(30), serve(*flags, workers, cwd=tmp_path):
                pass
        assert len(str(failure.value).splitlines()) == 1

"""What several tests of the HTTP surface do: post JSON, read one metric, find cached tokens."""

import json
import re

LONG = "The user is sent another word. " * 12
HELLO = [{"role": "user", "content": "Hello there"}]


async def post(http, server, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with http.post(server.url + path, data=data) as response:
        return response.status, await response.json()


async def metric(http, server, name):
    async with http.get(f"{server.url}/metrics") as response:
        page = await response.text()
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def cached(client, salt=None, prompt=LONG):
    answer = await client.completions.create(
        model="tiny", prompt=prompt, max_tokens=2, extra_body={"cache_salt": salt} if salt else {}
    )
    return answer.usage.prompt_tokens_details.cached_tokens

"""Brings everything up on loopback, runs the scenarios and shows the figures."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from headstart.cli.demo.client import Answer, RefusedError, ask
from headstart.cli.demo.measure import Ask, ScenarioResult, run_scenario
from headstart.cli.demo.report import as_json, as_table
from headstart.cli.demo.scenarios import Scenario, load_scenarios
from headstart.cli.serve import embedded_settings
from headstart.cli.service import Service, running_service
from headstart.config.load import Flags, load_config
from headstart.errors import BadRequest, UpstreamUnavailable
from headstart.types import JsonObject

_READY_TRIES = 60
_READY_PAUSE_S = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=10)


async def run_demo(flags: Flags, folder: Path, *, prints_json: bool, keep: bool) -> int:
    """Bring everything up, run the scenarios and print their table or JSON; returns 0.

    Args:
        flags: as of `headstart serve`.
        folder: for the records of this run.
        prints_json: print JSON instead of a table.
        keep: stay up until a signal.

    Raises:
        HeadstartError: something does not start, or the engine refuses a request.
    """
    console = Console(stderr=True)
    # Nothing of the user's own configuration may change what the demo shows.
    config = load_config(flags, {}, folder=folder).config
    embedded = None if config.engines else embedded_settings(config)
    console.print("Starting the gateway" + (" and an embedded replica" if embedded else ""))
    async with running_service(config, embedded) as service:
        url = f"http://{service.listen}"
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            await _wait_ready(session, url)
            model = embedded.model_name if embedded else await _model(session, url, flags.model)
            results = await _run_all(session, url, model, console)
        if prints_json:
            typer.echo(as_json(results))
        else:
            Console().print(as_table(results))
        if keep:
            await _stay(service, folder, console)
    return 0


async def _run_all(
    session: aiohttp.ClientSession, url: str, model: str, console: Console
) -> list[ScenarioResult]:
    scenarios = load_scenarios()
    results = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("warming up", total=2 * sum(len(s.steps) for s in scenarios))
        send = _counted(session, url, progress, task)
        has_salts = await _has_salts(session, url, model)
        if not has_salts:
            console.print(
                "The engine has no cache_salt: the first request of each scenario is cold"
            )
        for scenario in scenarios:
            progress.update(task, description=scenario.name)
            results.append(await _run_one(scenario, model, send, has_salts=has_salts))
    return results


async def _run_one(scenario: Scenario, model: str, send: Ask, *, has_salts: bool) -> ScenarioResult:
    try:
        return await run_scenario(scenario, model, send, has_salts=has_salts)
    except RefusedError as error:
        raise UpstreamUnavailable(f"{scenario.name}: {error.message}") from error


def _counted(session: aiohttp.ClientSession, url: str, progress: Progress, task: TaskID) -> Ask:
    async def send(body: JsonObject) -> Answer:
        answer = await ask(session, f"{url}/v1/chat/completions", body)
        progress.advance(task)
        return answer

    return send


async def _has_salts(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    """Find out whether a salt isolates: the same prompt under two salts must not be cached.

    The text is longer than a block of any engine. An engine that refuses the field, ignores it,
    or does not report cached tokens cannot have its cache switched off by a salt that we can
    trust.
    """
    text = "Count the words of this sentence, and then count them once more. " * 20
    body: JsonObject = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "temperature": 0,
    }
    cached: list[int | None] = []
    for salt in (os.urandom(16).hex(), os.urandom(16).hex()):
        try:
            answer = await ask(session, f"{url}/v1/chat/completions", {**body, "cache_salt": salt})
        except RefusedError as error:
            if error.engine_status in (400, 422):
                return False
            raise UpstreamUnavailable(error.message) from error
        cached.append(answer.usage.cached_tokens)
    return cached[1] == 0


async def _wait_ready(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until the gateway has found an engine that answers."""
    for _ in range(_READY_TRIES):
        async with session.get(f"{url}/ready") as response:
            if response.status == 200:
                return
            why = await response.text()
        await asyncio.sleep(_READY_PAUSE_S)
    raise UpstreamUnavailable(f"the engine does not answer; the gateway says: {why}")


async def _model(session: aiohttp.ClientSession, url: str, named: str | None) -> str:
    """Return the model to ask: the named one, or the only one that the engine serves."""
    if named is not None:
        return named
    async with session.get(f"{url}/v1/models") as response:
        served: Sequence[str] = [entry["id"] for entry in (await response.json())["data"]]
    if len(served) != 1:
        listed = ", ".join(served) or "none that it names"
        raise BadRequest(f"the engine serves {listed}; choose one with --model", param="model")
    return served[0]


async def _stay(service: Service, folder: Path, console: Console) -> None:
    """Say where everything is and wait for SIGINT or SIGTERM."""
    console.print(f"gateway  http://{service.listen}/v1")
    for replica in service.replicas:
        console.print(f"engine   {replica.url}")
    console.print(f"metrics  http://{service.admin}/metrics")
    console.print(f"records  {folder}", "(removed at the end)")
    console.print("Ctrl-C ends it")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()

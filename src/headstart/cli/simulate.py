"""`headstart simulate`: replay a trace against a fleet, under one policy after the other."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headstart.cli import simulate_options as options
from headstart.cli.errors import one_line_errors
from headstart.cli.simulate_options import BOUND_FACTOR, COSTS
from headstart.config.values import nearest
from headstart.errors import ConfigError, StoreUnavailable
from headstart.routing.config import PolicyName
from headstart.simulator import experiment
from headstart.simulator.capacity import Capacity
from headstart.simulator.cost import CostModel
from headstart.simulator.report.document import document
from headstart.simulator.report.html import check_installed, page
from headstart.simulator.report.result import Result, Run
from headstart.simulator.report.table import header, rows, summary
from headstart.simulator.setup import Knowledge, Setup
from headstart.simulator.source import open_trace, reblocked, shortened
from headstart.simulator.trace import Trace

_KNOWLEDGE: dict[str, Knowledge] = {name: name for name in get_args(Knowledge)}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("simulate")(simulate)


def simulate(
    trace: options.TraceArgument,
    policy: options.PoliciesOption = None,
    load: options.LoadOption = "",
    rate: options.RateOption = "",
    seeds: options.SeedsOption = 5,
    replicas: options.ReplicasOption = 8,
    kv_tokens: options.KvTokensOption = 307_328,
    cost: options.CostOption = next(iter(COSTS)),
    block_tokens: options.BlockTokensOption = None,
    requests: options.RequestsOption = None,
    gateways: options.GatewaysOption = 1,
    event_delay: options.EventDelayOption = 0.0,
    knowledge: options.KnowledgeOption = "events",
    gossip: options.GossipOption = 0.0,
    pinned: options.PinnedOption = False,
    bound: options.BoundOption = None,
    objective: options.ObjectiveOption = 1.0,
    warmup: options.WarmupOption = 0.1,
    open_loop: options.OpenLoopOption = False,
    gap_scale: options.GapScaleOption = 1.0,
    processes: options.ProcessesOption = None,
    as_json: options.JsonOption = False,
    html: options.HtmlOption = None,
) -> None:
    """Replay a trace against simulated replicas, routed as the gateway routes."""
    with one_line_errors():
        _check_finite("--bound", bound or 0.0)
        if html is not None:
            _check_page(html)
        loads, rates = _numbers(load, "--load"), _numbers(rate, "--rate")
        policies = _policies(policy or ["expected_ttft"])
        replayed = _prepared(open_trace(trace), block_tokens, requests)
        setup = Setup(
            num_replicas=replicas,
            kv_tokens=kv_tokens,
            cost=_cost(cost),
            num_gateways=gateways,
            event_delay_s=_check_finite("--event-delay", event_delay),
            is_pinned=pinned,
            knowledge=_knowledge(knowledge),
            gossip_s=_check_finite("--gossip", gossip),
            warmup_ratio=warmup,
            objective_s=_check_finite("--objective", objective),
            is_open_loop=open_loop,
            gap_scale=_check_finite("--gap-scale", gap_scale),
        )
        _check_room(replayed, setup, bool(loads))
        num_processes = processes or os.cpu_count() or 1
        result = _experiment(replayed, setup, policies, loads, rates, seeds, bound, num_processes)
        if as_json:
            print(json.dumps(document(result), indent=1, allow_nan=False))
        else:
            _print(result)
        if html is not None:  # last, since the figures are not lost if the disk is full
            _write_page(html, page(result))


def _experiment(
    trace: Trace,
    setup: Setup,
    policies: Sequence[PolicyName],
    loads: Sequence[float],
    rates: Sequence[float],
    num_seeds: int,
    bound_s: float | None,
    num_processes: int,
) -> Result:
    if loads and rates:
        raise ConfigError("--load and --rate exclude each other; give one of them.")
    if bound_s is not None and not loads:
        raise ConfigError("--bound defines the capacity that --load is a share of; give --load.")
    with _progress() as progress:
        capacity = light_p90_s = None
        if loads:
            if bound_s is None:
                light_p90_s = experiment.light_p90_s(trace, setup, policies[0])
                bound_s = BOUND_FACTOR * light_p90_s
            capacity = _capacity(trace, setup, policies, bound_s, progress)
            rates = [capacity.rate * share for share in loads]
        by_rate = dict(zip(rates, loads, strict=True)) if loads else {}
        cells = experiment.cells_of(policies, rates or [None], range(num_seeds))
        task = progress.add_task("replays", total=len(cells))
        runs = []
        for cell, outcome in experiment.run_cells(trace, setup, cells, num_processes):
            share = None if cell.rate is None else by_rate.get(cell.rate)
            runs.append(Run(cell.policy, share, cell.rate, cell.seed, outcome))
            progress.advance(task)
    # Cells are done in any order, and of each rate seed by seed.
    runs.sort(key=lambda run: (run.rate or 0.0, policies.index(run.policy), run.seed))
    return Result(
        trace=trace.name,
        num_requests=len(trace.requests),
        block_tokens=trace.block_tokens,
        setup=setup,
        runs=runs,
        capacity=capacity,
        bound_s=bound_s if loads else None,
        light_p90_s=light_p90_s,
    )


def _capacity(
    trace: Trace,
    setup: Setup,
    policies: Sequence[PolicyName],
    bound_s: float,
    progress: Progress,
) -> Capacity:
    task = progress.add_task("capacity", total=None)

    def heard(policy: PolicyName, rate: float, p90_s: float) -> None:
        progress.update(task, description=f"capacity: {policy}, {rate:.2f}/s, P90 {p90_s:.2f} s")
        progress.advance(task)

    try:
        capacity = experiment.capacity_of(trace, setup, policies, bound_s, heard)
    except ValueError as exc:
        raise ConfigError(
            f"No capacity was found: {exc}; give another --bound, or --open-loop for sessions "
            "that wait for their answers."
        ) from exc
    progress.update(task, description="capacity", total=capacity.num_runs)
    return capacity


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


def _prepared(trace: Trace, block_tokens: int | None, num_requests: int | None) -> Trace:
    if num_requests is not None:
        trace = shortened(trace, num_requests)
    return trace if block_tokens is None else reblocked(trace, block_tokens)


def _check_finite(option: str, value: float) -> float:
    if not isfinite(value):
        raise ConfigError(f"{option} {value} is no number to reckon with; give a finite one.")
    return value


def _check_page(path: Path) -> None:
    """Refuse a page that could not be written, before hours are spent on its figures."""
    check_installed()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--html {path} cannot be written; give a file in a folder that exists.")


def _write_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--html {path}: {exc.strerror}; give another file.") from exc


def _check_room(trace: Trace, setup: Setup, is_all_needed: bool) -> None:
    """Refuse a fleet that could hold none of the requests, or not all if all are needed."""
    size = trace.block_tokens
    room = max(setup.kv_tokens // size, 1)
    needed = [-(-(one.input_tokens + one.output_tokens) // size) for one in trace.requests]
    if min(needed) > room:
        raise ConfigError(
            f"--kv-tokens {setup.kv_tokens} holds no request of this trace, of which the shortest "
            f"needs {min(needed) * size}; give more."
        )
    if is_all_needed and max(needed) > room:
        raise ConfigError(
            f"--load needs replicas that hold every request, of which the longest needs "
            f"{max(needed) * size} tokens of KV; give --kv-tokens {max(needed) * size}, or --rate."
        )


def _policies(names: Sequence[str]) -> list[PolicyName]:
    known: tuple[PolicyName, ...] = get_args(PolicyName)
    by_name = {str(name): name for name in known}
    for name in names:
        if name not in by_name:
            raise ConfigError(f"There is no policy {name!r}; {nearest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def _knowledge(name: str) -> Knowledge:
    if name not in _KNOWLEDGE:
        raise ConfigError(f"--knowledge {name!r} is none; {nearest(name, _KNOWLEDGE)}")
    return _KNOWLEDGE[name]


def _cost(name: str) -> CostModel:
    path = Path(name).expanduser()
    if path.is_file():
        from headstart.simulator.fit import fit_store  # brings numpy, which others do without

        try:
            found = fit_store(path)
        except StoreUnavailable as exc:
            raise ConfigError(
                f"--cost {name} is no store of records; give one, or {', '.join(COSTS)}"
            ) from exc
        typer.echo(
            f"headstart: cost fitted to {found.num_records} requests; of the half held out it "
            f"misses TTFT by {found.median_error_ratio:.0%} at the median, "
            f"{found.p90_error_ratio:.0%} at P90",
            err=True,
        )
        return found.cost
    if name not in COSTS:
        raise ConfigError(f"There is no cost model {name!r}; {nearest(name, COSTS)}")
    return COSTS[name]


def _numbers(text: str, option: str) -> list[float]:
    numbers = []
    for part in text.split(",") if text else ():
        try:
            number = float(part)
        except ValueError:
            number = 0.0
        if not 0.0 < number < float("inf"):
            raise ConfigError(f"{option} takes numbers above 0, like 0.6,0.8; {part!r} is none.")
        numbers.append(number)
    return list(dict.fromkeys(numbers))


def _print(result: Result) -> None:
    table = Table(*header(), box=None)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows(result):
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # lines that are cut in a file are of no use
    console.print(table)
    for sentence in summary(result):
        print(sentence)

"""What `headstart simulate` takes on its command line."""

from pathlib import Path
from typing import Annotated, Final

import typer

from headstart.simulator.cost import CostModel, cost_models
from headstart.simulator.source import GENERATORS

BOUND_FACTOR: Final = 5.0
"""Of the TTFT P90 of a fleet with little to do: the bound that defines capacity by default."""

COSTS: Final[dict[str, CostModel]] = {model.name: model for model in cost_models()}

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="File (Mooncake, Bailian, WEKA, chat log, own records; plain or gzip), or "
        f"generate:NAME with one of {', '.join(GENERATORS)}.",
    ),
]
PoliciesOption = Annotated[
    list[str] | None, typer.Option(help="Policy, as often as wanted.  [expected_ttft]")
]
LoadOption = Annotated[
    str, typer.Option(help="Loads as shares of the capacity, e.g. 0.6,0.8,0.95.")
]
RateOption = Annotated[str, typer.Option(help="Requests per second instead of --load.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Runs of each policy and load.")]
ReplicasOption = Annotated[int, typer.Option(min=1, max=1024)]
KvTokensOption = Annotated[int, typer.Option(min=1, help="KV of each replica.")]
CostOption = Annotated[
    str,
    typer.Option(help=f"How long steps take: {', '.join(COSTS)}, or a store whose records to fit."),
]
BlockTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Size of a block; a multiple of the trace's.")
]
RequestsOption = Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")]
GatewaysOption = Annotated[int, typer.Option(min=1, help="Gateways, each with what it knows.")]
EventDelayOption = Annotated[
    float, typer.Option(min=0.0, help="Seconds until gateways hear of caches' events.")
]
KnowledgeOption = Annotated[
    str, typer.Option(help="Of caches: events, or approximate (what a gateway sent there).")
]
GossipOption = Annotated[
    float,
    typer.Option(min=0.0, help="Seconds until gateways hear of others' dispatches; 0: never."),
]
PinnedOption = Annotated[bool, typer.Option(help="A session stays with one gateway.")]
BoundOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="TTFT P90 in seconds up to which a load is within the capacity. Default: "
        f"{BOUND_FACTOR:g} times that of a fleet with little to do.",
    ),
]
ObjectiveOption = Annotated[float, typer.Option(min=0.0, help="TTFT that is good, seconds.")]
WarmupOption = Annotated[
    float, typer.Option(min=0.0, max=0.99, help="Share of requests not counted.")
]
OpenLoopOption = Annotated[
    bool,
    typer.Option(help="Send requests when they are due, without waiting for the last answer."),
]
GapScaleOption = Annotated[
    float,
    typer.Option(min=0.0001, help="Factor on gaps in sessions of a trace without times."),
]
ProcessesOption = Annotated[
    int | None, typer.Option(min=1, help="Default: one for each processor.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HtmlOption = Annotated[Path | None, typer.Option(help="Write a page with charts.")]

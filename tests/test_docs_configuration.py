"""Every key, flag, variable, metric, log key and column has its line in the docs, and no other."""

import re
from pathlib import Path

import msgspec
import pytest
import typer.main
from prometheus_client.parser import text_string_to_metric_families

from headstart.accounting.exposition import render_metrics
from headstart.accounting.log import LogLine
from headstart.accounting.metrics import MetricsSnapshot, RequestMetrics
from headstart.accounting.record import RequestRecord
from headstart.accounting.recorder import RecorderStatistics, SinkStatistics
from headstart.accounting.store import _COLUMNS
from headstart.accounting.tenant import TenantLimits
from headstart.cli.main import app
from headstart.config.explain import settings
from headstart.config.gossip import GOSSIP_KEYS
from headstart.config.load import _NOT_KEYS, Flags, load_config, variable_keys
from headstart.config.schema import ENGINE_KEYS, TENANT_KEYS
from headstart.gateway.cache_status import CacheStatus, ShadowStatus
from headstart.gateway.families import gateway_families
from headstart.gateway.gossip.statistics import GossipStatistics
from headstart.gateway.overview import Overview, WorkerStatus
from headstart.gateway.process import ProcessStatus
from headstart.gateway.state import GatewayStatus, ReplicaStatus
from headstart.wire.usage import Usage

DOCS = Path(__file__).parent.parent / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")


def rows(text, heading):
    """First cells of the tables between a heading and the next of its kind or above."""
    level = heading.split()[0]
    after = text.split(f"\n{heading}\n", 1)[1]
    section = re.split(rf"\n#{{1,{len(level)}}} ", after)[0]
    found = {}
    for line in re.findall(r"^\|.*$", section, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))]
        if cells[0].startswith("`"):
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_every_key_has_its_line():
    """And no line describes a key that is gone."""
    documented = rows(CONFIGURATION, "### Keys").keys() | rows(CONFIGURATION, "### Sections").keys()
    assert documented == {*variable_keys(), "tenants"}


def test_every_documented_default_is_the_default(tmp_path):
    """Of the sections, whose defaults are plain values."""
    defaults = {
        line.key: line.value for line in settings(load_config(Flags(), {}, folder=tmp_path))
    }
    for key, (default, _meaning) in rows(CONFIGURATION, "### Sections").items():
        value = defaults[key]
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        assert default == f"`{shown}`", key


def test_every_key_of_an_engine_and_a_tenant_has_its_line():
    """The entries of the two lists."""
    assert rows(CONFIGURATION, "### `engines`").keys() == set(ENGINE_KEYS)
    assert rows(CONFIGURATION, "### `gossip`").keys() == set(GOSSIP_KEYS)
    tenant_keys = set(TENANT_KEYS) - {"limits"}
    tenant_keys |= {f"limits.{name}" for name in TenantLimits.__dataclass_fields__}
    assert rows(CONFIGURATION, "### `tenants`").keys() == tenant_keys


def test_every_flag_has_its_line():
    """As `headstart serve --help` lists them."""
    command = typer.main.get_command(app).commands["serve"]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    documented = {row.split()[0] for row in rows(CONFIGURATION, "## Flags of `headstart serve`")}
    assert documented == flags - {"--help"}


@pytest.mark.parametrize("name", sorted(_NOT_KEYS))
def test_every_other_variable_is_mentioned(name):
    """Those that set no key included."""
    assert name in CONFIGURATION


def test_the_example_file_is_accepted(tmp_path):
    """Copied from the page as it is."""
    (tmp_path / "templates").mkdir()
    example = re.search(r"```yaml\n(.*?)```", CONFIGURATION, re.DOTALL)[1]
    (tmp_path / "headstart.yaml").write_text(example)
    environment = {"OPENAI_API_KEY": "x", "ACME_KEY": "y"}
    assert len(load_config(Flags(), environment, folder=tmp_path).config.engines) == 2


CACHE = CacheStatus("precise", "", tokens_agree=True)
REPLICA = ReplicaStatus("a", "http://a", "vllm", ("m",), True, "", 0, 0, 0, 0, cache=CACHE)
OVERVIEW = Overview(
    gateway=GatewayStatus(
        *(False, True, 0, 0, (REPLICA,)),
        shadows=(ShadowStatus("round_robin", 0, 0, 0, 0, 0),),
        gossip={"worker-0": GossipStatistics()},
    ),
    requests=MetricsSnapshot((), ()),
    recorder=RecorderStatistics(0, ()),
    processes=(ProcessStatus("supervisor", 0.0, 0, 0, 0),),
    workers=(WorkerStatus("worker-0", True, 0.0, 0),),
)


def test_every_metric_family_has_its_line_with_its_type():
    """And no line describes one that is gone."""
    metrics = RequestMetrics()
    metrics.observe(
        RequestRecord(
            *("r", 0.0, "/v1/completions"),
            usage=Usage(1, 1, 0, 1),
            ttft_s=0.1,
            tpot_s=0.1,
        )
    )
    recorder = RecorderStatistics(0, (SinkStatistics("store", 0, 0, 0, 0),))
    text = render_metrics(metrics.snapshot(), recorder, gateway_families(OVERVIEW)).decode()
    families = {}
    for family in text_string_to_metric_families(text):
        suffix = "_total" if family.type == "counter" else ""
        families[family.name + suffix] = family.type
    documented = {name: cells[0] for name, cells in rows(METRICS, "## Prometheus").items()}
    assert documented == families


def test_every_query_uses_families_that_exist():
    """People paste them."""
    documented = rows(METRICS, "## Prometheus").keys()
    for name in re.findall(r"\(rate\((headstart_\w+)", METRICS):
        assert name.removesuffix("_bucket") in documented


def test_every_key_of_the_log_has_its_line():
    """In the order of the line."""
    names = [field.name for field in msgspec.structs.fields(LogLine)]
    assert list(rows(METRICS, "## The request log")) == names


def test_every_column_of_the_store_is_named():
    """People write SQL."""
    section = METRICS.split("## The store")[1]
    assert not [column for column in _COLUMNS if f"`{column}`" not in section]

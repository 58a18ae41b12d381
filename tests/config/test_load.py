"""The configuration: every key of the documented file, precedence, and errors with the place."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.accounting.tenant import TenantLimits
from headstart.config.address import Address
from headstart.config.explain import settings
from headstart.config.load import (
    ADMIN_KEY_VARIABLE,
    Flags,
    load_config,
    variable_keys,
    variable_name,
)
from headstart.config.schema import AT_LEAST, MORE_THAN
from headstart.errors import ConfigError

DOCUMENTED = """
listen: 127.0.0.1:8080
admin: 127.0.0.1:8081
data_dir: ~/headstart-data
templates: ./templates
engines:
  - name: a100-1
    url: http://10.0.0.11:8000
    kind: vllm
    models: [llama-3.1-8b-instruct]
  - name: openai
    url: https://api.openai.com
    kind: openai
    api_key_env: OPENAI_API_KEY
tenants:
  - name: acme
    key_env: ACME_KEY
    business_line: support
    limits: {concurrent: 32, requests_per_minute: 600, input_tokens_per_minute: 2000000}
routing:
  policy: prefix_hash
  prefix_hash: {leading_blocks: 8, load_bound: 1.25}
"""
SECRETS = {"OPENAI_API_KEY": "sk-secret-1", "ACME_KEY": "secret-2"}


@pytest.fixture
def load(tmp_path):
    """Load a text as headstart.yaml in a folder of its own."""

    def load(text="", environment=None, **flags):
        (tmp_path / "headstart.yaml").write_text(text)
        return load_config(Flags(**flags), environment or {}, folder=tmp_path)

    return load


@pytest.fixture
def refused(load):
    """Load and return the message of the error."""

    def refused(text="", environment=None, **flags):
        with pytest.raises(ConfigError) as error:
            load(text, environment, **flags)
        return error.value.message

    return refused


def test_the_documented_file_is_read_whole(load, tmp_path):
    """Every key of the format arrives where it belongs."""
    (tmp_path / "templates").mkdir()
    config = load(DOCUMENTED, SECRETS).config
    assert config.listen == Address("127.0.0.1", 8080)
    assert config.admin == Address("127.0.0.1", 8081)
    assert config.data_dir == Path("~/headstart-data").expanduser()
    assert config.templates == tmp_path / "templates"
    vllm, openai = config.engines
    assert (vllm.name, vllm.url, vllm.kind) == ("a100-1", "http://10.0.0.11:8000", "vllm")
    assert vllm.models == ("llama-3.1-8b-instruct",)
    assert (openai.kind, openai.api_key, openai.models) == ("openai", "sk-secret-1", ())
    (tenant,) = config.tenants
    assert (tenant.name, tenant.business_line) == ("acme", "support")
    assert tenant.key_sha256 == hashlib.sha256(b"secret-2").digest()
    assert tenant.limits == TenantLimits(32, 600, 2_000_000)
    assert config.routing.policy == "prefix_hash"
    assert config.routing.prefix_hash.load_bound == 1.25


def test_without_any_source_there_are_defaults(tmp_path):
    """`headstart serve` in an empty folder."""
    loaded = load_config(Flags(), {}, folder=tmp_path)
    config = loaded.config
    assert (str(config.listen), str(config.admin)) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert config.engines == config.tenants == ()
    assert config.templates is None
    assert config.request_log == "-"
    assert config.drain_s == 30.0
    assert config.data_dir.name == "headstart"
    assert loaded.file is None


def test_flags_win_over_variables_over_the_file_over_defaults(load):
    """One key, set everywhere, and taken away from the top."""
    text = "routing: {policy: round_robin}\ndrain_s: 1"
    variables = {"HEADSTART_ROUTING_POLICY": "least_loaded"}
    assert load(text, variables, policy="prefix_hash").config.routing.policy == "prefix_hash"
    assert load(text, variables).config.routing.policy == "least_loaded"
    assert load(text).config.routing.policy == "round_robin"
    assert load("").config.routing.policy == "expected_ttft"
    assert load(text, variables).config.drain_s == 1.0


@given(
    flag=st.one_of(st.none(), st.floats(0, 9)),
    variable=st.one_of(st.none(), st.integers(0, 9)),
    file=st.one_of(st.none(), st.integers(0, 9)),
)
def test_the_strongest_source_that_speaks_decides(tmp_path_factory, flag, variable, file):
    """For every combination of sources, value and origin agree."""
    folder = tmp_path_factory.mktemp("config")
    if file is not None:
        (folder / "headstart.yaml").write_text(f"drain_s: {file}\n")
    environment = {} if variable is None else {"HEADSTART_DRAIN_S": str(variable)}
    loaded = load_config(Flags(drain_s=flag), environment, folder=folder)
    expected = next((value for value in (flag, variable, file) if value is not None), 30.0)
    assert loaded.config.drain_s == expected
    kind = loaded.origins["drain_s"].kind if "drain_s" in loaded.origins else "default"
    assert kind == (
        "flag"
        if flag is not None
        else "environment"
        if variable is not None
        else "file"
        if file is not None
        else "default"
    )


def test_host_and_port_change_their_half_of_the_address(load):
    """And the origin names both."""
    loaded = load("listen: 10.0.0.1:9000", port=7000)
    assert str(loaded.config.listen) == "10.0.0.1:7000"
    assert str(loaded.origins["listen"]).startswith("--port, else ")
    assert str(loaded.config.admin) == "127.0.0.1:7001"
    assert str(load(host="::1").config.listen) == "[::1]:8080"
    assert str(load(host="0.0.0.0", port=0).config.listen) == "0.0.0.0:0"


def test_a_free_data_port_has_a_free_admin_port(load):
    """Port 0 plus one would be a privileged port."""
    assert load(port=0).config.admin.port == 0


def test_engines_of_flags_replace_those_of_the_file(load):
    """A list is taken whole; names are places, so that hashing does not depend on their order."""
    config = load(
        DOCUMENTED.replace("templates:", "#"),
        SECRETS,
        engines=("http://a:1/v1", "http://b:2"),
        model="m",
    ).config
    assert [(e.name, e.url, e.models) for e in config.engines] == [
        ("a:1", "http://a:1", ("m",)),
        ("b:2", "http://b:2", ("m",)),
    ]


def test_engines_of_a_variable_are_separated_by_commas_or_blanks(load):
    """For containers."""
    config = load("", {"HEADSTART_ENGINES": "http://a:1,http://b:2 http://c:3"}).config
    assert [engine.name for engine in config.engines] == ["a:1", "b:2", "c:3"]


def test_a_model_without_engines_is_the_embedded_one(load):
    """`headstart serve --model x.gguf`."""
    assert load(model="x.gguf").config.embedded.model == "x.gguf"


def test_a_model_flag_beside_the_files_engines_is_refused(refused):
    """Silently ignored, it would be found out late."""
    assert "--model goes with --engine" in refused("engines: [{url: http://a:1}]", model="m")


def test_paths_are_relative_to_where_they_are_written(tmp_path):
    """A file's to its folder, a flag's to the current one."""
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "gateway.yaml"
    file.write_text("data_dir: data\nrequest_log: log.jsonl\n")
    config = load_config(Flags(), {}, file=file, folder=tmp_path).config
    assert config.data_dir == tmp_path / "etc" / "data"
    assert config.request_log == tmp_path / "etc" / "log.jsonl"
    config = load_config(Flags(data_dir="d"), {}, file=file, folder=tmp_path).config
    assert config.data_dir == tmp_path / "d"


@pytest.mark.parametrize(
    ("written", "target"),
    [("off", "off"), ("false", "off"), ("'-'", "-"), ("stdout", "-"), ("'off'", "off")],
)
def test_the_request_log_can_be_off_or_standard_output(load, written, target):
    """However YAML spells it."""
    assert load(f"request_log: {written}").config.request_log == target


def test_the_file_can_be_named_by_flag_or_variable(tmp_path):
    """The flag wins, and a file that is not there is an error."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"listen: {name}:1\n")
    environment = {"HEADSTART_CONFIG": "a.yaml"}
    assert load_config(Flags(), environment, folder=tmp_path).config.listen.host == "a"
    loaded = load_config(Flags(), environment, file=Path("b.yaml"), folder=tmp_path)
    assert loaded.config.listen.host == "b"
    with pytest.raises(ConfigError, match="--config: there is no file"):
        load_config(Flags(), {}, file=Path("c.yaml"), folder=tmp_path)
    with pytest.raises(ConfigError, match="HEADSTART_CONFIG: there is no file"):
        load_config(Flags(), {"HEADSTART_CONFIG": "c.yaml"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lissten: 1", ":1: there is no key `lissten`; did you mean `listen`?"),
        ("a: 1\nzzz: 2", ":1: there is no key `a`; choose from admin, "),
        ("routing:\n  polcy: x", ":2: there is no key `routing.polcy`; did you mean `policy`?"),
        (
            "routing: {prefix_hash: {load_bond: 2}}",
            ":1: there is no key `routing.prefix_hash.load_bond`; did you mean `load_bound`?",
        ),
        (
            "engines: [{url: http://a, model: m}]",
            ":1: there is no key `engines[0].model`; did you mean `models`?",
        ),
        (
            "tenants: [{name: a, key_sha: x}]",
            ":1: there is no key `tenants[0].key_sha`; did you mean `key_sha256`?",
        ),
        (
            "routing: {policy: prefixhash}",
            ":1: `routing.policy` cannot be 'prefixhash'; did you mean `prefix_hash`?",
        ),
        ("engines: [{url: http://a, kind: vlm}]", ":1: `engines[0].kind` cannot be 'vlm'; did"),
        ("drain_s: soon", ":1: `drain_s` must be a number, and is 'soon'"),
        ("drain_s: true", ":1: `drain_s` must be a number, and is True"),
        ("drain_s: -1", ":1: `drain_s` must be at least 0, and is -1"),
        ("drain_s: 1e999", ":1: `drain_s` must be at least 0, and is inf"),
        ("drain_s:", ":1: `drain_s` must be a number, and is empty"),
        ("recorder: {flush_s: 1e12}", ":1: `recorder.flush_s` must be at most 1000000000, and is "),
        (
            'tenants: [{name: a, business_line: "\\ud83d"}]',
            ":1: a text holds half of a surrogate pair",
        ),
        (
            "routing: {prefix_hash: {load_bound: 1}}",
            ":1: `routing.prefix_hash.load_bound` must be more than 1, and is 1",
        ),
        (
            "routing: {prefix_hash: {leading_blocks: 1.5}}",
            ":1: `routing.prefix_hash.leading_blocks` must be a whole number, and is 1.5",
        ),
        (
            "tenants: [{name: a, key_sha256: x, limits: {concurrent: 0}}]",
            ":1: `tenants[0].key_sha256` is not 64 hexadecimal digits",
        ),
        ("engines: a", ":1: `engines` must be a list, and is 'a'"),
        ("engines: [a]", ":1: `engines[0]` must be a mapping of keys to values, and is 'a'"),
        ("engines: [{name: a}]", ":1: `engines[0]` has no url"),
        ("engines: [{url: a}]", ":1: `a` is not an engine's URL"),
        ("engines: [{url: http://a, models: m}]", ":1: `engines[0].models` must be a list"),
        ("engines: [{url: http://a, name: 'a b'}]", ":1: `engines[0].name` cannot be 'a b'"),
        ("engines: [{url: http://a}, {url: http://a}]", ":1: two engines are called `a`"),
        ("engines: [{url: http://a, ca_file: no.pem}]", ":1: `engines[0].ca_file` is "),
        ("routing: x", ":1: `routing` must be a mapping of keys to values, and is 'x'"),
        ("listen: here", ":1: `here` is not a port"),
        ("listen: 65535", "the admin port would be 65536; set `admin`"),
        ("listen: a:1\nadmin: a:1", ":2: the admin port a:1 can be reached from other machines"),
        ("listen: '1'\nadmin: 127.0.0.1:1", ":2: `admin` and `listen` are both 127.0.0.1:1"),
        ("templates: nowhere", ":1: `templates` is "),
        ("data_dir: ''", ":1: `data_dir` must be a path, and is ''"),
        ("request_log: ''", ":1: `request_log` is empty"),
    ],
)
def test_what_cannot_be_used_is_refused_with_place_and_next_step(refused, tmp_path, text, message):
    """Golden: what people see."""
    assert refused(text).replace(f"{tmp_path}/headstart.yaml", "").startswith(message)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("engines: [{url: http://a, api_key: hunter2}]", "api_key"),
        ("tenants: [{name: a, key: hunter2}]", "key"),
        ("admin_key: hunter2", "admin_key"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(refused, text, name):
    """The message says where secrets go instead."""
    message = refused(text)
    assert f"`{name}_env: ITS_NAME`" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("environment", [{}, {"K": ""}, {"K": "  "}])
def test_an_absent_variable_is_named(refused, environment):
    """And where it was named."""
    message = refused("engines:\n- url: http://a\n  api_key_env: K", environment)
    state = "empty" if environment else "not set"
    assert "headstart.yaml:3: the environment variable K, named by" in message
    assert state in message


def test_a_secret_can_come_from_a_file(load, tmp_path):
    """Without its line break."""
    (tmp_path / "key").write_text("s3cret\n")
    config = load("engines: [{url: http://a, api_key_file: key}]").config
    assert config.engines[0].api_key == "s3cret"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", b"\xff", "kü".encode()])
def test_a_secret_file_that_cannot_be_used_is_named_and_not_repeated(refused, tmp_path, content):
    """A line break in it would be a second header."""
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    message = refused("engines: [{url: http://a, api_key_file: key}]")
    assert "`engines[0].api_key_file`" in message
    assert "a\nb" not in message


def test_two_places_for_one_secret_are_refused(refused):
    """Which one counts?"""
    text = "engines: [{url: http://a, api_key_env: K, api_key_file: k}]"
    assert "both given" in refused(text, {"K": "x"})


def test_a_tenant_needs_exactly_one_key(refused):
    """None would let everybody in, two would be a riddle."""
    digest = "0" * 64
    assert "exactly one" in refused("tenants: [{name: a}]")
    both = f"tenants: [{{name: a, key_env: K, key_sha256: '{digest}'}}]"
    assert "exactly one" in refused(both, {"K": "x"})


def test_a_hash_is_the_hash_of_the_key(load):
    """`printf %s KEY | sha256sum` and `key_env` mean the same tenant."""
    digest = hashlib.sha256(b"k").hexdigest()
    by_hash = load(f"tenants: [{{name: a, key_sha256: '{digest.upper()}'}}]").config
    by_key = load("tenants: [{name: a, key_env: K}]", {"K": "k"}).config
    assert by_hash.tenants == by_key.tenants


def test_two_tenants_with_one_key_are_refused(refused):
    """A request could belong to either."""
    text = "tenants: [{name: a, key_env: K}, {name: b, key_env: K}]"
    assert "`a` and `b` have the same key" in refused(text, {"K": "x"})


def test_an_admin_port_for_others_needs_a_key(load):
    """With one, by either name, it is accepted."""
    text = "admin: 0.0.0.0:9"
    named = load(text + "\nadmin_key_env: K", {"K": "x"}).config
    assert named.admin_key == load(text, {ADMIN_KEY_VARIABLE: "x"}).config.admin_key == "x"


def test_secrets_are_in_no_repr(load):
    """A configuration may be logged."""
    config = load(
        DOCUMENTED.replace("templates:", "#"), {**SECRETS, ADMIN_KEY_VARIABLE: "secret-3"}
    ).config
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("HEADSTART_DRAIN_S", "soon", "HEADSTART_DRAIN_S: `drain_s` must be a number"),
        ("HEADSTART_LISTEN", "x", "HEADSTART_LISTEN: `x` is not a port"),
        ("HEADSTART_ENGINES", "x", "HEADSTART_ENGINES: `x` is not an engine's URL"),
        ("HEADSTART_ROUTING_POLICY", "x", "HEADSTART_ROUTING_POLICY: `routing.policy` cannot"),
    ],
)
def test_a_wrong_variable_is_named(refused, name, text, message):
    """The place is the variable."""
    assert refused("", {name: text}).startswith(message)


def test_variables_are_read_as_their_key_wants(load):
    """A number stays text where text is wanted, and becomes a number where one is."""
    config = load(
        "", {"HEADSTART_EMBEDDED_MODEL": "7", "HEADSTART_EMBEDDED_NUM_BLOCKS": "64"}
    ).config
    assert (config.embedded.model, config.embedded.num_blocks) == ("7", 64)


def test_no_two_keys_have_one_variable():
    """`a.b_c` and `a_b.c` would."""
    names = [variable_name(key) for key in variable_keys()]
    assert len(names) == len(set(names))


def test_a_variable_that_sets_nothing_is_reported_with_the_nearest(load):
    """A misspelt one would otherwise be ignored silently; one that names a secret is used."""
    text = "engines: [{url: http://a, api_key_env: HEADSTART_A_KEY}]"
    environment = {"HEADSTART_A_KEY": "x", "HEADSTART_LISTN": "1"}
    environment |= {"HEADSTART_TEST_ANYTHING": "x", "HEADSTART_CI_CACHE": "x"}
    environment |= {"HEADSTART_ADMIN_KEYS": "x"}
    assert load(text, environment).warnings == (
        "the environment variable HEADSTART_ADMIN_KEYS sets nothing; did you mean "
        "`HEADSTART_ADMIN_KEY`?",
        "the environment variable HEADSTART_LISTN sets nothing; did you mean `HEADSTART_LISTEN`?",
    )


def test_a_tenants_limits_are_no_reason_to_warn(load):
    """They are enforced."""
    tenants = "tenants: [{name: a, key_env: A, limits: {concurrent: 1}}]"
    assert load(tenants, {"A": "1"}).warnings == ()


def test_the_queue_is_off_unless_a_replica_has_a_maximum(load):
    """Engines have queues of their own."""
    assert load("").config.queue.max_in_flight is None
    assert load("queue: {max_in_flight: null}").config.queue.max_in_flight is None
    assert load("queue: {max_in_flight: 64}").config.queue.max_in_flight == 64
    assert load("", {"HEADSTART_QUEUE_MAX_IN_FLIGHT": "8"}).config.queue.max_in_flight == 8


def test_every_number_has_a_range(load):
    """A negative time or size is refused, whichever component it belongs to."""
    digest = "0" * 64
    loaded = load(
        f"drain_s: 1\ntenants: [{{name: a, key_sha256: '{digest}', limits: {{concurrent: 1}}}}]"
    )
    numbers = {
        line.key.replace("[0]", "") for line in settings(loaded) if type(line.value) in (int, float)
    }
    assert numbers <= AT_LEAST.keys() | MORE_THAN.keys()


@pytest.mark.parametrize("workers", ["0", "-1", "1.5", "two"])
def test_a_number_of_workers_that_cannot_be_is_refused(load, workers):
    """With its place."""
    with pytest.raises(ConfigError, match="HEADSTART_WORKERS: `workers` must be"):
        load(environment={"HEADSTART_WORKERS": workers})


def test_workers_come_from_flag_variable_and_file(load):
    """In this order."""
    assert load().config.workers == 1
    assert load("workers: 3").config.workers == 3
    assert load("workers: 3", {"HEADSTART_WORKERS": "4"}).config.workers == 4
    assert load("workers: 3", {"HEADSTART_WORKERS": "4"}, workers=5).config.workers == 5


def test_a_certificate_needs_its_key(load, tmp_path):
    """And both must be there."""
    (tmp_path / "cert.pem").touch()
    with pytest.raises(ConfigError, match=r":1: `tls.cert_file` needs `tls.key_file`"):
        load("tls: {cert_file: cert.pem}")
    with pytest.raises(ConfigError, match=r"`tls.key_file` is .*nothing, which is no file"):
        load("tls: {cert_file: cert.pem, key_file: nothing}")
    (tmp_path / "key.pem").touch()
    tls = load("tls: {cert_file: cert.pem, key_file: key.pem}").config.tls
    assert (tls.cert_file, tls.key_file) == (tmp_path / "cert.pem", tmp_path / "key.pem")


@pytest.mark.parametrize("shadow", ["[round_robin, round_robin]", "[expected_ttft]"])
def test_a_shadow_policy_is_asked_once_and_beside_another(load, shadow):
    """It would only agree with itself."""
    with pytest.raises(ConfigError, match="asked already"):
        load(f"routing: {{shadow: {shadow}}}")
    assert load("routing: {shadow: [lmetric]}").config.routing.shadow == ("lmetric",)


def test_what_only_a_queue_heeds_is_reported_where_there_is_none(load):
    """Without a limit per replica nobody waits."""
    order, objective = load("queue: {order: lpm, ttft_objective_s: 2}", {}).warnings
    assert "`queue.order` does nothing without `queue.max_in_flight`" in order
    assert "`queue.ttft_objective_s` does nothing" in objective
    assert load("queue: {order: lpm, ttft_objective_s: 2, max_in_flight: 8}", {}).warnings == ()

"""YAML becomes nodes that know their line; sources merge with the stronger one winning."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config.document import Node, Origin, merge, nest, parse_document, read_document
from headstart.errors import ConfigError

FILE = Path("headstart.yaml")


def plain(node):
    if isinstance(node.value, dict):
        return {key: plain(inner) for key, inner in node.value.items()}
    if isinstance(node.value, list):
        return [plain(inner) for inner in node.value]
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("2026-11-29", "2026-11-29"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    """`off` is a word and `1:30` is not ninety."""
    node = parse_document(f"key: {text}", FILE)
    assert plain(node) == {"key": value}
    assert type(plain(node)["key"]) is type(value)


def test_each_value_knows_its_line():
    """A nested mapping's line is that of its key."""
    node = parse_document("a: 1\nb:\n  c:\n    - x\n    - y\n", FILE)
    assert str(node.value["b"].origin) == "headstart.yaml:2"
    assert str(node.value["b"].value["c"].origin) == "headstart.yaml:3"
    assert str(node.value["b"].value["c"].value[1].origin) == "headstart.yaml:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "headstart.yaml:1: this is not YAML"),
        ("a: 1\na: 2", "headstart.yaml:2: `a` is set twice"),
        ("- a", "headstart.yaml:1: a configuration is a mapping"),
        ("text", "headstart.yaml:1: a configuration is a mapping"),
        ("a: !!python/object:os.system x", "headstart.yaml:1: the tag"),
        ("? [a]\n: b", "headstart.yaml:1: a key is a word"),
        ("a: &x [*x]", "headstart.yaml:1: this value contains itself"),
        ("a: \x00", "headstart.yaml: this is not YAML"),
        ("a: 1\n---\nb: 2", "headstart.yaml:2: this is not YAML"),
        ("[" * 5000, "headstart.yaml"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text, message):
    """No traceback, no silent half."""
    with pytest.raises(ConfigError) as error:
        parse_document(text, FILE)
    assert error.value.message.startswith(message)


def test_an_empty_file_sets_nothing():
    """Comments alone are a fine start."""
    assert plain(parse_document("# nothing yet\n", FILE)) == {}


def test_an_anchor_may_be_used_twice():
    """Only a value inside itself is refused."""
    assert plain(parse_document("a: &x [1]\nb: *x", FILE)) == {"a": [1], "b": [1]}


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path):
    """The path is what people need to see."""
    with pytest.raises(ConfigError, match="No such file"):
        read_document(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_document(tmp_path / "y.yaml")


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3), st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


def tree(value, origin):
    if isinstance(value, dict):
        return Node({key: tree(inner, origin) for key, inner in value.items()}, origin)
    if isinstance(value, list):
        return Node([tree(inner, origin) for inner in value], origin)
    return Node(value, origin)


def naive_merge(low, high):
    if isinstance(low, dict) and isinstance(high, dict):
        return {
            key: naive_merge(low[key], high[key])
            if key in low and key in high
            else high.get(key, low.get(key))
            for key in {**low, **high}
        }
    return high


@given(st.lists(st.dictionaries(st.sampled_from("abc"), TREES, max_size=3), min_size=1, max_size=4))
def test_the_stronger_source_wins_key_by_key(sources):
    """Against a naive twin on plain values; and each leaf's origin is the source it came from."""
    merged = tree(sources[0], Origin("file", "0"))
    expected = sources[0]
    for number, source in enumerate(sources[1:], start=1):
        merged = merge(merged, tree(source, Origin("file", str(number))))
        expected = naive_merge(expected, source)
    assert plain(merged) == expected
    check_origins(merged, sources)


def check_origins(node, sources, path=()):
    if isinstance(node.value, dict):
        for key, inner in node.value.items():
            check_origins(inner, sources, (*path, key))
        return
    value = sources[int(node.origin.place)]
    for key in path:
        value = value[key]
    assert plain(node) == value


def test_nesting_builds_the_tree_of_dotted_keys():
    """As flags and variables name them."""
    origin = Origin("flag", "--x")
    nested = nest({"a.b": Node(1, origin), "a.c.d": Node(2, origin), "e": Node(3, origin)}, origin)
    assert plain(nested) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}

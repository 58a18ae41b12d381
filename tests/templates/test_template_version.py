"""Versions and hashes: names made of content."""

import hashlib
from pathlib import Path

import pytest

from headstart.templates import TemplateVersion
from headstart.templates.load import load_template
from headstart.templates.version import make_version
from template_folder import SUPPORT, SUPPORT_FILES, load_support, load_version, write_template

_FACTS = ("version", "static_prefix_hash", "tool_schema_version", "output_schema_version")


def _changed(before: TemplateVersion, after: TemplateVersion) -> set[str]:
    return {fact for fact in _FACTS if getattr(before, fact) != getattr(after, fact)}


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("policy.md", "kind", "good", {"version", "static_prefix_hash"}),
        ("tools.json", "Search", "Find", {"version", "static_prefix_hash", "tool_schema_version"}),
        ("answer.json", "1.0", "2", {"version", "static_prefix_hash", "output_schema_version"}),
        ("few_shot.json", "Sum", "Add", {"version", "static_prefix_hash"}),
        ("", "model: tiny", "model: other", {"version", "static_prefix_hash"}),
        ("", "role: system", "role: developer", {"version", "static_prefix_hash"}),
        ("", "order: by_id", "order: by_score", {"version"}),
        ("", "(now:", "(time:", {"version"}),
        ("", "name: policy", "name: rules", {"version"}),
        ("", "id: support", "id: help", {"version"}),
        ("", "id: support", "# a comment\nid: support", set()),
        ("answer.json", "1.0", "1", set()),
        ("answer.json", '"b": {"const": 1.0}, "a": {}', '"a": {}, "b": {"const": 1.0}', set()),
        ("policy.md", "\n", "\r\n", set()),
    ],
)
def test_each_name_changes_with_what_it_names_and_with_nothing_else(
    tmp_path: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    text, files = SUPPORT, dict(SUPPORT_FILES)
    if file:
        assert old in files[file]
        files[file] = files[file].replace(old, new)
    else:
        assert old in text
        text = text.replace(old, new)
    before = load_support(tmp_path / "before")
    assert _changed(before, load_version(tmp_path / "after", text, files)) == changed


def test_the_order_of_tools_in_the_file_does_not_matter(tmp_path: Path) -> None:
    one = '{"type": "function", "function": {"name": "b"}}'
    two = '{"type": "function", "function": {"name": "a"}}'
    before, after = (
        load_version(tmp_path / name, SUPPORT, SUPPORT_FILES | {"tools.json": f"[{tools}]"})
        for name, tools in (("before", f"{one}, {two}"), ("after", f"{two},\n {one}"))
    )
    assert _changed(before, after) == set()


def test_names_have_the_promised_form(tmp_path: Path) -> None:
    version = load_support(tmp_path)
    assert version.label == f"support@{version.version}"
    assert len(version.version) == len(version.tool_schema_version or "") == 12
    prefix = version.prepared.static_prefix.bytes_for("tiny")
    assert version.static_prefix_hash == "sha256:" + hashlib.sha256(prefix).hexdigest()
    tools = b"[" + b",".join(version.prepared.static_prefix.tools or ()) + b"]"
    assert version.tool_schema_version == hashlib.sha256(tools).hexdigest()[:12]


def test_hashes_are_pinned(tmp_path: Path) -> None:
    """A change of these values makes every deployed prefix cold: it needs a changelog entry."""
    version = load_support(tmp_path)
    assert [getattr(version, fact) for fact in _FACTS] == [
        "084e82001a7a",
        "sha256:d5f9beb5a1bc2b4d3ba0376a420a7277ec21fefb215c3285b233434fed5e2953",
        "ebbcde1ad744",
        "019ba50f1cd2",
    ]


def test_a_template_without_tools_and_schema_has_no_versions_of_them(tmp_path: Path) -> None:
    text = "id: t\nmodel: m\nsegments:\n  - {name: a, role: system, kind: static, text: x}\n"
    version = load_version(tmp_path, text)
    assert version.tool_schema_version is None
    assert version.output_schema_version is None


def test_a_registry_can_give_a_version_its_own_name(tmp_path: Path) -> None:
    template = load_template(write_template(tmp_path, SUPPORT, SUPPORT_FILES))
    assert make_version(template, "7").label == "support@7"

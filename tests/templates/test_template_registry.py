"""A folder of templates: what is found, what is refused."""

from pathlib import Path

import pytest

from headstart.errors import ConfigError, NotFound, TemplateError
from headstart.templates import TemplateSet
from headstart.templates.registry import load_folder
from template_folder import SMALL, SUPPORT, SUPPORT_FILES, write_template


def _folder(tmp_path: Path) -> Path:
    write_template(tmp_path / "one", SMALL)
    write_template(tmp_path / "two", SUPPORT, SUPPORT_FILES)
    (tmp_path / "two" / "template.yaml").rename(tmp_path / "two" / "support.yml")
    write_template(tmp_path / ".hidden", "not a template")
    return tmp_path


def test_templates_are_found_in_the_folder_and_below(tmp_path: Path) -> None:
    templates = TemplateSet.load(_folder(tmp_path))
    assert [version.template.id for version in templates.versions()] == ["small", "support"]
    assert len(templates) == 2


def test_a_template_is_found_by_id_and_by_its_version(tmp_path: Path) -> None:
    templates = TemplateSet.load(_folder(tmp_path))
    version = templates.resolve("small")
    assert templates.resolve("small", version.version) is version


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    templates = TemplateSet.load(_folder(tmp_path))
    with pytest.raises(NotFound, match="no template 'smal'; did you mean 'small'"):
        templates.resolve("smal")
    with pytest.raises(NotFound, match="no template 'other'; known: small, support"):
        templates.resolve("other")
    in_force = templates.resolve("small").version
    with pytest.raises(NotFound, match=f"has no version '7'; in force is '{in_force}'"):
        templates.resolve("small", "7")
    with pytest.raises(NotFound, match="no templates are loaded"):
        TemplateSet().resolve("small")


def test_an_id_belongs_to_one_file(tmp_path: Path) -> None:
    write_template(tmp_path / "a", SMALL)
    write_template(tmp_path / "b", SMALL)
    with pytest.raises(TemplateError, match=r"b/template.yaml:1: the id 'small' is taken by .*/a/"):
        TemplateSet.load(tmp_path)


def test_one_fault_stops_the_load_and_says_how_many_more_there_are(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_template(tmp_path / name, "id: x")
    with pytest.raises(TemplateError, match=r"a/template\.yaml:1: .*\(2 more files have faults\)"):
        TemplateSet.load(tmp_path)
    assert len(load_folder(tmp_path)[1]) == 3


def test_a_missing_folder_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no template folder"):
        TemplateSet.load(tmp_path / "none")


def test_a_message_repeats_only_the_beginning_of_an_endless_name(tmp_path: Path) -> None:
    templates = TemplateSet.load(_folder(tmp_path))
    for template_id, version in (("x" * 100_000, None), ("small", "x" * 100_000)):
        with pytest.raises(NotFound) as caught:
            templates.resolve(template_id, version)
        assert len(caught.value.message) < 400

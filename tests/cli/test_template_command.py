"""`headstart template`: what people and scripts see."""

import json
from pathlib import Path

import pytest
import tokenizers
import typer
from typer.testing import CliRunner, Result

from headstart.cli.template import register
from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.prompt.chat_template import ChatTemplate
from headstart.templates import TemplateSet
from headstart.templates.static_tokens import count_static_tokens
from template_folder import SMALL, SUPPORT, SUPPORT_FILES, write_template
from tiny_model import CHAT_TEMPLATE, MERGES, SPECIAL_TOKENS, vocabulary


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_template(tmp_path / "templates" / "support", SUPPORT, SUPPORT_FILES)
    write_template(tmp_path / "templates" / "small", SMALL)
    return tmp_path / "templates"


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["template", *map(str, arguments)])


def test_show_prints_every_fact(folder: Path, tiny_gguf: Path) -> None:
    version = TemplateSet.load(folder).resolve("support")
    chat_template = ChatTemplate(load_gguf(tiny_gguf).chat_template or "")
    tokens = count_static_tokens(version, load_tokenizer(tiny_gguf), chat_template)
    result = _run("show", "support", "--templates", folder, "--tokenizer", tiny_gguf)
    assert result.exit_code == 0
    for fact in (
        version.label,
        version.static_prefix_hash,
        version.tool_schema_version,
        version.output_schema_version,
        f"{tokens.total:,}",
        "text with documents",
        "per request",
    ):
        assert str(fact) in result.stdout
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name, count in tokens.by_segment:
        assert lines[name].split()[-1] == f"{count:,}"


def test_show_as_json_has_the_names_of_the_template_form(folder: Path, tiny_gguf: Path) -> None:
    result = _run("show", "support", "--tokenizer", tiny_gguf, "--json")
    facts = json.loads(result.stdout)
    version = TemplateSet.load(folder).resolve("support")
    assert facts["version"] == version.version
    assert facts["label"] == version.label
    assert facts["static_prefix_hash"] == version.static_prefix_hash
    assert facts["tool_schema_version"] == version.tool_schema_version
    assert facts["output_schema_version"] == version.output_schema_version
    static = [segment for segment in facts["segments"] if segment["kind"] == "static"]
    assert sum(segment["tokens"] for segment in static) == facts["static_tokens"] > 0
    assert facts["segments"][-1] == {
        "name": "question",
        "kind": "dynamic",
        "role": "user",
        "content": "text with question, now",
        "tokens": None,
    }
    assert facts["variables"][0] == {"name": "documents", "kind": "session", "order": "by_id"}


def test_without_a_tokenizer_counts_are_unknown_and_the_way_out_is_named(folder: Path) -> None:
    result = _run("show", "small", "--templates", folder)
    assert result.exit_code == 0
    assert "no tokenizer is known for tiny; give one with --tokenizer PATH" in result.stdout
    facts = json.loads(_run("show", "small", "--json").stdout)
    assert facts["static_tokens"] is None
    known = SMALL.replace("model: tiny", "model: smollm2-135m")
    write_template(folder / "small", known)
    result = _run("show", "small")
    assert "run `headstart model fetch smollm2-135m`" in result.stdout


def test_a_model_folder_serves_as_tokenizer(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    missing = _run("show", "small", "--tokenizer", model)
    assert missing.exit_code == 1
    assert "has no chat template" in missing.stderr
    config: dict[str, object] = {
        "chat_template": CHAT_TEMPLATE,
        "bos_token": {"content": "<s>"},
        "eos_token": None,
    }
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    by_folder = json.loads(_run("show", "small", "--tokenizer", model, "--json").stdout)
    by_file = _run("show", "small", "--tokenizer", model / "tokenizer.json", "--json")
    assert by_folder["static_tokens"] == json.loads(by_file.stdout)["static_tokens"] > 0
    config["chat_template"] = [{"name": "default", "template": CHAT_TEMPLATE}]
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    named = json.loads(_run("show", "small", "--tokenizer", model, "--json").stdout)
    assert named["static_tokens"] == by_folder["static_tokens"]


def test_a_tokenizer_that_is_not_there_is_an_error(folder: Path) -> None:
    result = _run("show", "small", "--tokenizer", "nowhere.gguf")
    assert result.exit_code == 1
    assert "--tokenizer: there is no nowhere.gguf" in result.stderr


def test_an_unknown_template_is_named_with_the_nearest(folder: Path) -> None:
    result = _run("show", "suport")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "headstart: There is no template 'suport'; did you mean 'support'"
    )


def test_list_shows_each_template(folder: Path) -> None:
    result = _run("list")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["id", "small", "support"]
    facts = json.loads(_run("list", "--json").stdout)
    assert [entry["id"] for entry in facts] == ["small", "support"]


def test_the_folder_comes_from_the_configuration_where_no_option_names_it(
    folder: Path, tmp_path: Path
) -> None:
    folder.rename(tmp_path / "prompts")
    missing = _run("list")
    assert missing.exit_code == 1
    assert "Name one with --templates DIR" in missing.stderr
    (tmp_path / "headstart.yaml").write_text("templates: prompts\n", encoding="utf-8")
    assert "support" in _run("list").stdout


def test_templates_are_found_where_no_secret_of_the_configuration_is_set(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACME_KEY", raising=False)
    (tmp_path / "headstart.yaml").write_text(
        f"templates: {folder}\ntenants: [{{name: acme, key_env: ACME_KEY}}]\n", encoding="utf-8"
    )
    result = _run("list")
    assert result.exit_code == 0
    assert "support" in result.stdout


def test_check_counts_what_is_in_order(folder: Path) -> None:
    result = _run("check", folder)
    assert result.exit_code == 0
    assert "2 templates" in result.stdout


def test_check_prints_each_files_fault_and_fails(folder: Path) -> None:
    write_template(folder / "small", SMALL.replace("Be brief.", "'{{ question }}'"))
    write_template(folder / "other", "id: [")
    result = _run("check")
    assert result.exit_code == 1
    first, second, last = result.stderr.splitlines()
    assert first.startswith("templates/other/template.yaml:1: not valid YAML")
    assert second.startswith("templates/small/template.yaml:6: the dynamic variable 'question'")
    assert last == "2 of 3 templates have a fault."


def _tokenizer_json() -> str:
    """The tiny model's vocabulary in Hugging Face's form."""
    tokens, _ = vocabulary()
    model = tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, list(MERGES))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer.to_str()

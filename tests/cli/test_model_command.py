"""`headstart model`: names, places and one-line errors."""

import pytest
from typer.testing import CliRunner

from headstart.cli import model as model_command
from headstart.cli.main import app
from headstart.cli.model import cache_dir, resolve_model
from headstart.engines.embedded.fetch import SMOLLM2_135M, model_path
from headstart.errors import ModelUnavailable


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def fetched(cache):
    """A file of the right size: the cheap check does not read it."""
    path = model_path(SMOLLM2_135M, cache)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SMOLLM2_135M.file_bytes)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["model", *arguments])


def test_the_cache_folder_is_the_users_unless_the_environment_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADSTART_CACHE_DIR", raising=False)
    assert cache_dir().name == "headstart"
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path


def test_list_names_each_model_and_whether_it_is_here(cache):
    assert "smollm2-135m\t98 MB\tApache-2.0\tnot fetched" in run("list").output


def test_list_and_path_say_where_a_fetched_model_is(fetched):
    assert str(fetched) in run("list").output
    assert run("path", "smollm2-135m").output.strip() == str(fetched)


def test_path_of_an_absent_model_says_how_to_fetch_it(cache):
    result = run("path", "smollm2-135m")
    assert result.exit_code == 1
    assert "headstart model fetch smollm2-135m" in result.output


def test_an_unknown_name_is_refused_with_the_known_ones(cache):
    result = run("fetch", "gpt-9")
    assert result.exit_code == 1
    assert "'gpt-9'" in result.output
    assert "smollm2-135m" in result.output


def test_fetch_prints_the_path(cache, monkeypatch):
    path = model_path(SMOLLM2_135M, cache)
    monkeypatch.setattr(model_command, "fetch_model", lambda *_, **__: path)
    result = run("fetch")
    assert result.exit_code == 0
    assert result.stdout.strip() == str(path)


def test_a_failed_fetch_is_one_line_and_status_1(cache, monkeypatch):
    def fail(*_, **__):
        raise ModelUnavailable("no network; do this")

    monkeypatch.setattr(model_command, "fetch_model", fail)
    result = run("fetch")
    assert result.exit_code == 1
    assert result.stderr.strip().endswith("headstart: no network; do this")
    assert "Traceback" not in result.output


def test_a_known_name_resolves_to_its_file_without_fetching_again(fetched):
    resolved = resolve_model("smollm2-135m")
    assert (resolved.path, resolved.name) == (fetched, "smollm2-135m")


def test_a_path_resolves_to_itself_and_its_stem(tiny_gguf):
    resolved = resolve_model(str(tiny_gguf))
    assert (resolved.path, resolved.name) == (tiny_gguf, "tiny")

"""Find the tokenizer and chat template that a template's token counts need."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.engines.embedded.fetch import is_fetched, known_model, model_path
from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.errors import ConfigError, HeadstartError
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.tokenizer import Tokenizer
from headstart.templates.model import TemplateVersion
from headstart.templates.static_tokens import StaticTokens, count_static_tokens


@dataclass(frozen=True, slots=True)
class ModelText:
    """How a model's prompts become tokens.

    Attributes:
        tokenizer: text to token ids.
        chat_template: messages to text.
        source: the file, for people.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    source: Path


@dataclass(frozen=True, slots=True)
class CountResult:
    """Token counts, or why there are none.

    Attributes:
        tokens: None if unknown.
        note: where the counts come from, or what to do to get them.
    """

    tokens: StaticTokens | None
    note: str


def count_tokens(version: TemplateVersion, tokenizer: Path | None, cache_dir: Path) -> CountResult:
    """Count a version's static tokens, by default with the fetched model of the template's name.

    Args:
        version: what to count.
        tokenizer: a GGUF file, a tokenizer.json or a model's folder; None takes the model that
            the template names, if it has been fetched.
        cache_dir: where fetched models are.

    Raises:
        HeadstartError: a `tokenizer` that was asked for cannot be used.
    """
    model = version.template.form.model
    if tokenizer is None:
        package = known_model(model)
        if package is None:
            return CountResult(
                None, f"no tokenizer is known for {model}; give one with --tokenizer PATH"
            )
        if not is_fetched(package, cache_dir):
            return CountResult(
                None,
                f"{model} has not been fetched; run `headstart model fetch {model}` or give "
                "--tokenizer PATH",
            )
        tokenizer = model_path(package, cache_dir)
    text = load_model_text(tokenizer)
    try:
        tokens = count_static_tokens(version, text.tokenizer, text.chat_template)
    except HeadstartError as exc:
        return CountResult(None, exc.message)
    return CountResult(tokens, f"counted with {text.source}")


def load_model_text(path: Path) -> ModelText:
    """Read a tokenizer and the chat template beside it; does not read weights.

    Raises:
        ConfigError: no such path, or one of the two is missing.
        ModelUnavailable: a file cannot be understood.
    """
    if path.is_dir():
        return _from_folder(path / "tokenizer.json")
    if not path.is_file():
        raise ConfigError(
            f"--tokenizer: there is no {path}; give a GGUF file, a tokenizer.json or a model's "
            "folder",
            param="tokenizer",
        )
    if path.suffix == ".json":
        return _from_folder(path)
    model = load_gguf(path)
    if model.chat_template is None:
        raise ConfigError(f"--tokenizer: {path} carries no chat template", param="tokenizer")
    template = ChatTemplate(
        model.chat_template, bos_token=model.bos_token or "", eos_token=model.eos_token or ""
    )
    return ModelText(load_tokenizer(path), template, path)


def _from_folder(tokenizer_json: Path) -> ModelText:
    folder = tokenizer_json.parent
    data = _read(tokenizer_json)
    config: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").is_file():
        config = _json_object(folder / "tokenizer_config.json")
    source = _template_source(folder, config)
    if source is None:
        raise ConfigError(
            f"--tokenizer: {folder} has no chat template (chat_template.jinja, or `chat_template` "
            "in tokenizer_config.json); give a folder that has one",
            param="tokenizer",
        )
    template = ChatTemplate(
        source,
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
    )
    return ModelText(Tokenizer.from_json(data), template, tokenizer_json)


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    if (folder / "chat_template.jinja").is_file():
        return _read(folder / "chat_template.jinja").decode(errors="replace")
    found = config.get("chat_template")
    if isinstance(found, list):
        # Several named templates; the one for plain chat is called "default".
        found = next(
            (
                entry.get("template")
                for entry in found
                if isinstance(entry, dict) and entry.get("name") == "default"
            ),
            None,
        )
    return found if isinstance(found, str) else None


def _token_text(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"--tokenizer: {path} cannot be read: {exc.strerror}", param="tokenizer"
        ) from exc


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as exc:
        raise ConfigError(f"--tokenizer: {path} is not JSON", param="tokenizer") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"--tokenizer: {path} must be a JSON object", param="tokenizer")
    return value

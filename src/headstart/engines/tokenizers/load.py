"""Loads a model's tokenizer and chat template from its files.

    FOLDER                      tokenizer.json, tokenizer_config.json, chat_template.jinja
    FOLDER/tokenizer.json       the same, named by its file
    MODEL.gguf                  vocabulary and template inside the file, or the folder's only one

Nothing is fetched: a name of a model on a hub is no path.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from headstart.engines.embedded.gguf import GgufModel, build_tokenizer, load_gguf
from headstart.engines.tokenizers.config import TokenizerConfig
from headstart.engines.tokenizers.model import ModelTokenizer
from headstart.errors import ConfigError, HeadstartError, ModelUnavailable
from headstart.prompt.chat_template import ChatTemplate
from headstart.prompt.prompt_tokens import Dialect, PromptReader
from headstart.prompt.text_cutter import AddedToken
from headstart.prompt.text_encoder import TextEncoder, encoder_of
from headstart.prompt.token_cache import DEFAULT_CACHE_BYTES

_SPECIAL_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_NUM_SPECIAL_TEXTS: Final = 4
_GGUF_WRITTEN: Final = (3, 4)
"""Types of tokens that are found in text before it is split: control and user-defined."""

_NEXT_STEP: Final = (
    "give the model's folder, its tokenizer.json or its .gguf file as `tokenizer`, "
    "or leave it out to route without tokens"
)


def load_tokenizer(
    config: TokenizerConfig, dialect: Dialect, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> ModelTokenizer:
    """Load what the operator named.

    Args:
        config: where it is.
        dialect: whose way of rendering.
        cache_bytes: for text seen before.

    Raises:
        ConfigError: a file is missing, damaged or of an unknown kind. It is named, with what to do.

    Cost: 0.1 to 2 s, by the size of the vocabulary.
    """
    path = Path(config.path).expanduser()
    try:
        gguf = _gguf_of(path)
        if gguf is not None:
            return _from_gguf(gguf, config, dialect, cache_bytes)
        return _from_folder(_tokenizer_json_of(path), config, dialect, cache_bytes)
    except ConfigError:
        raise
    except HeadstartError as exc:
        raise ConfigError(
            f"The tokenizer {config.path} cannot be used: {exc.message}; {_NEXT_STEP}.",
            param="tokenizer",
        ) from exc


def _gguf_of(path: Path) -> Path | None:
    if path.suffix == ".gguf":
        return path
    if path.is_dir() and not (path / "tokenizer.json").exists():
        found = sorted(path.glob("*.gguf"))
        return found[0] if len(found) == 1 else None
    return None


def _tokenizer_json_of(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        what = "has no tokenizer.json" if path.is_dir() else "is no file"
        raise ConfigError(f"The tokenizer {path} {what}; {_NEXT_STEP}.", param="tokenizer")
    return file


def _from_folder(
    file: Path, config: TokenizerConfig, dialect: Dialect, cache_bytes: int
) -> ModelTokenizer:
    settings = _read_object(file.with_name("tokenizer_config.json"))
    special = _special_tokens(file, settings)
    try:
        backend = tokenizers.Tokenizer.from_buffer(file.read_bytes())
    except Exception as exc:  # the library has no narrower class
        raise ModelUnavailable(f"{file.name} cannot be read: {exc}") from exc
    _add_missing(backend, settings, special)
    default, with_tools = _templates(file.parent, settings, config)
    reader = PromptReader(
        _template(default, special),
        tool_template=_template(with_tools, special),
        special_tokens=special,
        dialect=dialect,
        shape=config.content_format,
        defaults=config.chat_template_kwargs,
    )
    return ModelTokenizer(
        config.path,
        reader,
        encoder_of(backend),
        special_texts=_special_texts(
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        ),
        cache_bytes=cache_bytes,
    )


def _from_gguf(
    path: Path, config: TokenizerConfig, dialect: Dialect, cache_bytes: int
) -> ModelTokenizer:
    model = load_gguf(path)
    special = {
        name: text
        for name, text in (("bos_token", model.bos_token), ("eos_token", model.eos_token))
        if text is not None
    }
    source = _own_template(config) or model.chat_template
    reader = PromptReader(
        _template(source, special),
        special_tokens=special,
        dialect=dialect,
        shape=config.content_format,
        defaults=config.chat_template_kwargs,
    )
    added = _gguf_added(model)
    return ModelTokenizer(
        config.path,
        reader,
        _gguf_encoder(model, added),
        special_texts=_special_texts(added),
        cache_bytes=cache_bytes,
    )


def _gguf_encoder(model: GgufModel, added: list[str]) -> TextEncoder:
    tokenizer = build_tokenizer(model)
    start = model.bos_token_id if model.add_bos_token else None
    return TextEncoder(
        lambda texts: [tokenizer.encode(text) for text in texts],
        [AddedToken(text) for text in added],
        first_ids=[] if start is None else [start],
        repeats_first=False,
    )


def _gguf_added(model: GgufModel) -> list[str]:
    tokens = model.require("tokenizer.ggml.tokens", list)
    types = model.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    pairs = zip(tokens, types, strict=False)
    return [text for text, kind in pairs if kind in _GGUF_WRITTEN and text]


def _special_tokens(file: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what `bos_token` and its like stand for; either a string or an object says so."""
    named = _read_object(file.with_name("special_tokens_map.json")) | dict(settings)
    found = {}
    for name in _SPECIAL_NAMES:
        value = named.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _add_missing(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Add tokens that only tokenizer_config.json names, as Hugging Face does when it loads."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    described = settings.get("added_tokens_decoder")
    entries = described.values() if isinstance(described, dict) else ()
    missing = [
        tokenizers.AddedToken(
            entry["content"],
            lstrip=bool(entry.get("lstrip")),
            rstrip=bool(entry.get("rstrip")),
            single_word=bool(entry.get("single_word")),
            normalized=bool(entry.get("normalized", True)),
            special=bool(entry.get("special")),
        )
        for entry in entries
        if isinstance(entry, dict) and entry.get("content") and entry["content"] not in known
    ]
    if missing:
        backend.add_tokens(missing)
        known |= {token.content for token in missing}
    more = [text for text in special.values() if text not in known]
    if more:
        backend.add_special_tokens(
            [tokenizers.AddedToken(text, special=True, normalized=False) for text in more]
        )


def _templates(
    folder: Path, settings: Mapping[str, Any], config: TokenizerConfig
) -> tuple[str | None, str | None]:
    """Return the chat template, and another one for requests with tools if the model has two."""
    own = _own_template(config)
    if own is not None:
        return own, None
    file = folder / "chat_template.jinja"
    if file.is_file():
        tool_file = folder / "additional_chat_templates" / "tool_use.jinja"
        return _read_text(file), _read_text(tool_file) if tool_file.is_file() else None
    given = settings.get("chat_template")
    if given is None:
        given = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        return named.get("default"), named.get("tool_use")
    return (given, None) if isinstance(given, str) else (None, None)


def _own_template(config: TokenizerConfig) -> str | None:
    if config.chat_template is None:
        return None
    return _read_text(Path(config.chat_template).expanduser())


def _template(source: str | None, special: Mapping[str, str]) -> ChatTemplate | None:
    if source is None:
        return None
    return ChatTemplate(
        source,
        bos_token=special.get("bos_token", ""),
        eos_token=special.get("eos_token", ""),
    )


def _special_texts(texts: Any) -> list[str]:
    return [text for text in texts if not text.isspace()][:_NUM_SPECIAL_TEXTS]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"The chat template {path} cannot be read: {reason}; name a Jinja2 file as "
            "`chat_template`, or leave it out to use the model's own.",
            param="chat_template",
        ) from exc


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"The file {path} cannot be read: {exc}; fetch the model again.", param="tokenizer"
        ) from exc
    return value if isinstance(value, dict) else {}

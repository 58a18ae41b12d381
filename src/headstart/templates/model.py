"""A template as its author wrote it, and a version of it as requests use it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headstart.prompt.assembly import PreparedPrompt
from headstart.prompt.segments import PromptForm


class CacheStrategy(StrEnum):
    """What a template is laid out for. One so far: the longest stable prefix comes first."""

    PREFIX_CACHE_FIRST = "prefix-cache-first"


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template with everything that its files hold.

    Attributes:
        id: unique in a folder; safe in a header and as a metric's label.
        path: the YAML file it came from.
        cache_strategy: as declared.
        form: model, variables and segments.
    """

    id: str
    path: Path
    cache_strategy: CacheStrategy
    form: PromptForm


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """A template under a name that changes whenever its content does.

    Attributes:
        template: the content.
        version: of a file, 12 hexadecimal digits of the content's SHA-256.
        static_prefix_hash: `sha256:…` of the assembled body up to the first byte that may change.
        tool_schema_version: 12 hexadecimal digits of the tools' SHA-256; None without tools.
        output_schema_version: the same of the answer's schema; None without one.
        prepared: what assembly takes.
    """

    template: Template
    version: str
    static_prefix_hash: str
    tool_schema_version: str | None
    output_schema_version: str | None
    prepared: PreparedPrompt

    @property
    def label(self) -> str:
        """`id@version`, as headers, records and metrics show it."""
        return self.prepared.label

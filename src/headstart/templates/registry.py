"""All templates of a folder, found by id and version.

The gateway knows only `resolve`. A registry that keeps published versions in a store answers the
same question with more than one version per id.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from headstart.errors import ConfigError, NotFound, TemplateError
from headstart.prompt.nearest import clip_name, did_you_mean
from headstart.templates.load import load_template
from headstart.templates.model import TemplateVersion
from headstart.templates.version import make_version


class TemplateSet:
    """Immutable set of template versions, one of each id in force."""

    __slots__ = ("_by_id",)

    def __init__(self, versions: Iterable[TemplateVersion] = ()) -> None:
        self._by_id: Mapping[str, TemplateVersion] = {
            version.template.id: version for version in versions
        }

    @classmethod
    def load(cls, folder: Path) -> "TemplateSet":
        """Read every `*.yaml` and `*.yml` in a folder and below it; hidden folders are left out.

        Raises:
            ConfigError: there is no such folder.
            TemplateError: the first fault, with file and line, and how many files have more.
        """
        versions, errors = load_folder(folder)
        if errors:
            more = f" ({len(errors) - 1} more files have faults)" if len(errors) > 1 else ""
            raise TemplateError(errors[0].message + more) from errors[0]
        return cls(versions)

    def __len__(self) -> int:
        return len(self._by_id)

    def versions(self) -> tuple[TemplateVersion, ...]:
        """Return the version in force of each template, by id."""
        return tuple(self._by_id[template_id] for template_id in sorted(self._by_id))

    def resolve(self, template_id: str, version: str | None = None) -> TemplateVersion:
        """Return a version; None asks for the one in force.

        Raises:
            NotFound: no such template or version; says what exists.
        """
        found = self._by_id.get(template_id)
        if found is None:
            hint = did_you_mean(template_id, self._by_id) or "; no templates are loaded"
            raise NotFound(
                f"There is no template {clip_name(template_id)!r}{hint}", param="prompt.id"
            )
        if version is not None and version != found.version:
            raise NotFound(
                f"Template {template_id!r} has no version {clip_name(version)!r}; in force is "
                f"{found.version!r}. Send that, or no version.",
                param="prompt.version",
            )
        return found


def load_folder(folder: Path) -> tuple[list[TemplateVersion], list[TemplateError]]:
    """Read every template of a folder; collects each file's first fault instead of stopping.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"There is no template folder {folder}.", param="templates")
    versions: dict[str, TemplateVersion] = {}
    errors: list[TemplateError] = []
    for path in template_files(folder):
        try:
            version = make_version(load_template(path, root=folder))
            template = version.template
            if template.id in versions:
                first = versions[template.id].template.path
                raise TemplateError(f"{path}:1: the id {template.id!r} is taken by {first}")
        except TemplateError as exc:
            errors.append(exc)
        else:
            versions[template.id] = version
    return list(versions.values()), errors


def template_files(folder: Path) -> list[Path]:
    """Return the folder's template files in a stable order."""
    return sorted(
        path
        for suffix in ("*.yaml", "*.yml")
        for path in folder.rglob(suffix)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )

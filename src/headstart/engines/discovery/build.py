"""From configuration to source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.dns import DnsConfig, DnsSource
from headstart.engines.discovery.file import FileConfig, FileSource
from headstart.engines.discovery.kubernetes import KubernetesConfig, KubernetesSource
from headstart.engines.discovery.source import Source

ReadFile = Callable[[Path, ReplicaConfig], Sequence[ReplicaConfig]]
"""Reads a file of engines; what one of them leaves open is as in the template."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A source as the configuration names it.

    Attributes:
        where: what is watched.
        template: what the replicas found there have in common; its name and URL are not used.
    """

    where: DnsConfig | FileConfig | KubernetesConfig
    template: ReplicaConfig


def build_source(entry: SourceEntry, read_file: ReadFile) -> Source:
    """Make the source that `entry` names; it asks nobody before it is watched."""
    match entry.where:
        case DnsConfig():
            return DnsSource(entry.where, entry.template)
        case KubernetesConfig():
            return KubernetesSource(entry.where, entry.template)
        case FileConfig():
            return FileSource(entry.where, partial(_read, read_file, entry.template))


def _read(read_file: ReadFile, template: ReplicaConfig, path: Path) -> Sequence[ReplicaConfig]:
    return read_file(path, template)

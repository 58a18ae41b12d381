"""VERSIONING: templates from files, their versions and hashes.

    model      what a template and a version are
    load       one YAML file and the files it names -> a checked Template
    version    a Template -> a TemplateVersion with its hashes
    registry   a folder -> a TemplateSet; id and version -> a TemplateVersion
    apply      a request body that names a template -> the body for the engine
    static_tokens   how many tokens of a version's prompts are the same in every request

Not here: putting the prompt together (`prompt.assembly`).
"""

from headstart.templates.apply import AppliedTemplate, apply_template
from headstart.templates.model import Template, TemplateVersion
from headstart.templates.registry import TemplateSet

__all__ = ["AppliedTemplate", "Template", "TemplateSet", "TemplateVersion", "apply_template"]

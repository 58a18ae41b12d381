"""docs/templates.md says what the code does."""

import json
import re
from pathlib import Path

import yaml

from headstart.prompt.documents import DocumentOrder
from headstart.prompt.segments import ROLES
from headstart.templates import TemplateSet, apply_template

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
_EXAMPLES = _ROOT / "examples" / "templates"


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL)
    assert found
    return found.group(1)


def test_the_template_on_the_page_is_the_one_that_ships() -> None:
    assert _block("yaml") == (_EXAMPLES / "support-agent.yaml").read_text(encoding="utf-8")


def test_the_request_on_the_page_works() -> None:
    applied = apply_template(json.loads(_block("json")), TemplateSet.load(_EXAMPLES))
    assert applied.template_label in _PAGE


def test_the_request_of_the_quick_start_works() -> None:
    page = (_ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    found = re.search(r"-d '(\{.*?\})'\n```", page, re.DOTALL)
    assert found
    body = json.loads(found.group(1))
    applied = apply_template(body, TemplateSet.load(_EXAMPLES))
    assert applied.template_label.startswith(f"{body['prompt']['id']}@")


def test_every_key_and_value_of_the_form_is_on_the_page() -> None:
    template = yaml.safe_load(_block("yaml"))
    keys = {key for segment in template["segments"] for key in segment} | set(template)
    for name in (*keys, "strict", *ROLES, *(order.value for order in DocumentOrder)):
        assert f"`{name}`" in _PAGE

"""The templates that ship: they load, they assemble, and they have the size that they promise."""

from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from headstart.engines.embedded.gguf import load_gguf, load_tokenizer
from headstart.prompt.chat_template import ChatTemplate
from headstart.templates import TemplateSet, apply_template
from headstart.templates.static_tokens import static_token_count

_EXAMPLES = Path(__file__).parents[2] / "examples" / "templates"
_DEMO = Path(str(files("headstart.cli"))) / "demo_data"


def test_the_example_of_the_documentation_works() -> None:
    applied = apply_template(
        {
            "prompt": {
                "id": "support-agent",
                "variables": {
                    "documents": [{"id": "errors-e2xx", "text": "E-214: no server."}],
                    "question": "What is E-214?",
                    "now": "2025-06-01T10:00:00Z",
                },
            }
        },
        TemplateSet.load(_EXAMPLES),
    )
    names = [segment.name for segment in applied.plan.segments]
    assert names == ["tools", "answer", "policy", "examples", "documents", "history", "question"]


def test_every_request_of_the_demonstration_can_be_assembled() -> None:
    templates = TemplateSet.load(_DEMO / "templates")
    scenarios = yaml.safe_load((_DEMO / "scenarios.yaml").read_text(encoding="utf-8"))
    document = (_DEMO / "document.txt").read_text(encoding="utf-8")
    documents = [{"id": scenarios["document-qa"]["document_id"], "text": document}]
    requests = [
        *(
            ("document-qa", {"documents": documents, "question": question}, [])
            for question in scenarios["document-qa"]["questions"]
        ),
        *(("support-chat", {"question": turn}, []) for turn in scenarios["support-chat"]["turns"]),
        *(
            ("agent-tools", {"question": task["question"]}, task.get("history", []))
            for task in scenarios["agent-tools"]["tasks"]
        ),
        *(
            ("invoice-extraction", {"invoice": invoice}, [])
            for invoice in scenarios["invoice-extraction"]["invoices"]
        ),
    ]
    prefixes: dict[str, set[bytes]] = {}
    for template_id, variables, messages in requests:
        body = {"prompt": {"id": template_id, "variables": variables}, "messages": messages}
        applied = apply_template(body, templates)
        prefix = applied.body[: applied.plan.static_end_byte]
        prefixes.setdefault(template_id, set()).add(prefix)
    assert {template_id: len(found) for template_id, found in prefixes.items()} == {
        "document-qa": 1,
        "support-chat": 1,
        "agent-tools": 1,
        "invoice-extraction": 1,
    }
    assert all(scenarios[name]["template"] == name for name in scenarios)
    assert len(requests) >= 4 * 4


@pytest.mark.parametrize(
    ("template_id", "low", "high"),
    [
        ("support-chat", 500, 900),
        ("agent-tools", 1000, 1600),
        ("invoice-extraction", 500, 1100),
    ],
)
def test_the_demonstrations_prefixes_are_long_enough_to_matter(
    real_model: Path, template_id: str, low: int, high: int
) -> None:
    tokenizer = load_tokenizer(real_model)
    chat_template = ChatTemplate(load_gguf(real_model).chat_template or "")
    version = TemplateSet.load(_DEMO / "templates").resolve(template_id)
    assert low <= static_token_count(version, tokenizer, chat_template) <= high


def test_the_demonstrations_document_is_long_enough_to_matter(real_model: Path) -> None:
    text = (_DEMO / "document.txt").read_text(encoding="utf-8")
    assert 1300 <= len(load_tokenizer(real_model).encode(text)) <= 1700

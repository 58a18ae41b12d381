"""What the demo sends: the four scenarios in `demo_data/scenarios.yaml` as request bodies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from headstart.cli.demo.client import Answer
from headstart.types import JsonObject

_MAX_TOKENS = 32
"""Enough for a TPOT, few enough for four scenarios twice in minutes on two cores."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request: the template's variables, and the messages before it."""

    variables: Mapping[str, object]
    history: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests that share a prefix.

    Attributes:
        name: as in the table.
        template: id of the template that makes the prompts.
        steps: sent in this order.
        is_chat: each step's history is the conversation so far, answers included.
    """

    name: str
    template: str
    steps: tuple[Step, ...]
    is_chat: bool = False


def templates_folder() -> Path:
    """Return the folder of the demo's templates."""
    return Path(str(_data() / "templates"))


def load_scenarios() -> tuple[Scenario, ...]:
    """Return the scenarios that ship with the package, in the order of the table."""
    entries = yaml.safe_load((_data() / "scenarios.yaml").read_text(encoding="utf-8"))
    return tuple(_scenario(name, entry) for name, entry in entries.items())


def request_bodies(
    scenario: Scenario, model: str, answers: Sequence[Answer]
) -> Iterator[JsonObject]:
    """Yield the bodies one after another; a chat's bodies contain the `answers` so far.

    Args:
        scenario: what to send.
        model: name of the model to ask.
        answers: filled by the caller with the answer to each body before the next is taken.
    """
    chat: list[JsonObject] = []
    for number, step in enumerate(scenario.steps):
        if scenario.is_chat and number:
            question = scenario.steps[number - 1].variables["question"]
            chat.append({"role": "user", "content": question})
            chat.append({"role": "assistant", "content": answers[number - 1].text})
        yield {
            "model": model,
            "prompt": {"id": scenario.template, "variables": dict(step.variables)},
            "messages": [*chat, *step.history],
            "temperature": 0,
            "max_tokens": _MAX_TOKENS,
        }


def _data() -> Traversable:
    return files("headstart.cli") / "demo_data"


def _scenario(name: str, entry: Mapping[str, Any]) -> Scenario:
    if "questions" in entry:
        text = (_data() / entry["document_file"]).read_text(encoding="utf-8")
        documents = [{"id": entry["document_id"], "text": text}]
        steps = [Step({"documents": documents, "question": q}) for q in entry["questions"]]
    elif "turns" in entry:
        steps = [Step({"question": turn}) for turn in entry["turns"]]
    elif "tasks" in entry:
        steps = [
            Step({"question": task["question"]}, tuple(task.get("history", ())))
            for task in entry["tasks"]
        ]
    else:
        steps = [Step({"invoice": invoice}) for invoice in entry["invoices"]]
    return Scenario(name, entry["template"], tuple(steps), is_chat="turns" in entry)

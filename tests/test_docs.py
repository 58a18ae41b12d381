"""The pages are true: links lead somewhere, commands exist, the README starts as promised."""

import re
from pathlib import Path

import pytest
import typer.main

from headstart.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
COMMANDS = (
    "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/headstart demo",
    "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest",
)


def command_names():
    """Every command of the command line, with the group before it."""
    names = []
    for name, command in typer.main.get_command(app).commands.items():
        children = getattr(command, "commands", {})
        names.extend([f"{name} {child}" for child in children] or [name])
    return names


def anchors(page):
    """The fragments that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_the_readme_begins_with_one_sentence_and_the_two_commands():
    """A newcomer needs nothing else, and CI takes the commands from here."""
    text = (ROOT / "README.md").read_text()
    paragraphs = text.split("\n\n")
    assert paragraphs[0] == "# headstart"
    assert paragraphs[1].count(". ") == 0
    fences = re.findall(r"```\n(.+?)\n```", text, re.DOTALL)
    assert tuple(fences[:2]) == COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    """A relative link names a file that is there and a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if fragment:
            assert fragment in anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", command_names())
def test_every_command_is_documented(name):
    """Each command has its line on a page."""
    assert any(f"headstart {name}" in page.read_text() for page in PAGES)


def test_every_page_is_reachable_from_the_readme():
    """Nothing in docs/ is an orphan."""
    text = (ROOT / "README.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert f"docs/{page.name}" in text, page.name

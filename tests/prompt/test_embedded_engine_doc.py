"""docs/embedded-engine.md shows the forms that the code writes."""

from pathlib import Path

from headstart.prompt.tool_form import render_schema, render_tool_call, render_tools

PAGE = (Path(__file__).parents[2] / "docs" / "embedded-engine.md").read_text()


def test_the_page_shows_the_system_sections_as_they_are_rendered():
    tool = {
        "type": "function",
        "function": {"name": "find_book", "parameters": {"type": "object"}},
    }
    sections = f"{render_tools([tool])}\n\n{render_schema({'type': 'object'})}"
    assert f"```text\n{sections}\n```" in PAGE


def test_the_page_shows_a_call_as_it_is_replayed():
    call = render_tool_call("find_book", '{"title":"Moby  Dick"}')
    assert f"```text\n{call}\n```" in PAGE

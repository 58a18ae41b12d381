"""What chat templates read."""

import pytest

from headstart.errors import TemplateError
from headstart.prompt.template_traits import content_format, reads_clock

LOOPS = [
    "{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content|list %}{{ c }}{% endfor %}{% endfor %}",
    "{% set turns = messages[1:] %}{% set rest = turns %}"
    "{% for m in rest %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{% if m.content is not string %}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c }}{% endfor %}"
    "{% endif %}{% endfor %}",
]
MACRO = "{% macro show(x, y) %}{% for c in y %}{{ c }}{% endfor %}{% endmacro %}"
LOOPS += [
    MACRO + "{% for m in messages %}{{ show(1, m.content) }}{% endfor %}",
    MACRO + "{% for m in messages %}{{ show(y=m['content'], x=1) }}{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}"
    "{% for c in content %}{{ c }}{% endfor %}{% endfor %}",
]
PLAIN = [
    MACRO + "{% for m in messages %}{{ show(m.content, 1) }}{% endfor %}",
    MACRO.replace("y", "content") + "{{ show(1, 2) }}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
    "{% for m in others %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "{% for t in tools %}{{ t }}{% endfor %}",
]


@pytest.mark.parametrize("source", LOOPS)
def test_a_template_that_loops_over_parts_wants_parts(source):
    """However it names the messages."""
    assert content_format(source) == "openai"


@pytest.mark.parametrize("source", PLAIN)
def test_any_other_template_wants_a_string(source):
    """A loop over something else is none over the content."""
    assert content_format(source) == "string"


def test_a_template_that_asks_for_the_time_is_known():
    """Its text changes by itself."""
    assert reads_clock("{{ strftime_now('%d %b %Y') }}")
    assert not reads_clock("{{ now }}")


def test_a_template_that_is_none_is_refused():
    """With the line."""
    with pytest.raises(TemplateError, match="line 1"):
        content_format("{% for %}")

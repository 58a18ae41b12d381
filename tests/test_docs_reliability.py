"""docs/reliability.md claims nothing that no test shows."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part)
def test_every_test_that_the_page_names_exists(file, name):
    """Renaming a test renames it on the page."""
    assert re.search(rf"^(?:async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)

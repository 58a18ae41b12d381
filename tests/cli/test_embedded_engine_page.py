"""docs/embedded-engine.md names every route, and no flag that does not exist."""

import re
from pathlib import Path

import typer

from headstart.cli.main import app
from headstart.engines.embedded.server import make_application

PAGE = (Path(__file__).parents[2] / "docs" / "embedded-engine.md").read_text()


def test_every_route_is_on_the_page():
    routes = {
        f"{route.method} {route.resource.canonical}"
        for route in make_application(None).router.routes()
        if route.method != "HEAD"
    }
    named = set(re.findall(r"`((?:GET|POST) /[\w/]+)`", PAGE))
    assert routes == named


def test_every_flag_on_the_page_exists():
    command = typer.main.get_command(app)
    flags = {flag for option in command.commands["engine"].params for flag in option.opts}
    lines = [line for line in PAGE.splitlines() if "headstart engine" in line]
    assert set(re.findall(r"--[a-z-]+", " ".join(lines))) <= flags | {"--help"}

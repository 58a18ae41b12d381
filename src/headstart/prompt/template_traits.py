"""What a chat template reads, found in its syntax tree and not by rendering it.

Engines ask the same of it: whether a message's content is a string, or a list of parts over which
the template loops, decides in which of the two shapes they hand it over.
"""

from collections.abc import Iterator
from typing import Final, Literal

from jinja2 import meta, nodes

from headstart.prompt.chat_template import parse_template

ContentFormat = Literal["string", "openai"]
"""Content as one string, or as OpenAI's list of parts."""

_CLOCK: Final = "strftime_now"


def content_format(source: str) -> ContentFormat:
    """Return the shape of content that a template wants: `openai` if it loops over the parts.

    Raises:
        TemplateError: the source is not valid Jinja2.

    Source: vLLM, `vllm/renderers/hf.py`, the detection behind
        `--chat-template-content-format auto`.
    """
    root = parse_template(source)
    messages = _aliases(root, "messages")
    turns = {name for loop, name in _loops(root) if any(_is_list(loop.iter, m) for m in messages)}
    parameters = _content_parameters(root, turns)
    for loop, _ in _loops(root):
        if any(_is_content(loop.iter, turn) for turn in turns):
            return "openai"
        # By its name alone outside a macro, and inside one if the content is handed in as it.
        names = parameters.get(id(loop), {"content"})
        if isinstance(loop.iter, nodes.Name) and loop.iter.name in names:
            return "openai"
    return "string"


def reads_clock(source: str) -> bool:
    """Return whether a template asks for the current time, so that its text changes by itself.

    Raises:
        TemplateError: the source is not valid Jinja2.
    """
    return _CLOCK in meta.find_undeclared_variables(parse_template(source))


def _aliases(root: nodes.Template, name: str) -> set[str]:
    """Return `name` and every variable that is set to it, or to a slice of it."""
    found = {name}
    num_known = 0
    while len(found) > num_known:
        num_known = len(found)
        for assignment in root.find_all(nodes.Assign):
            target = assignment.target
            if isinstance(target, nodes.Name) and any(_is_list(assignment.node, n) for n in found):
                found.add(target.name)
    return found


def _content_parameters(root: nodes.Template, turns: set[str]) -> dict[int, set[str]]:
    """Return for each loop in a macro which of its parameters are given a message's content."""
    found: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        contents: set[str] = set()
        for call in root.find_all(nodes.Call):
            if not _is_name(call.node, macro.name):
                continue
            given = [*zip(names, call.args, strict=False)]
            given += [(each.key, each.value) for each in call.kwargs if each.key in names]
            contents |= {
                name for name, value in given if any(_is_content(value, turn) for turn in turns)
            }
        found |= {id(loop): contents for loop in macro.find_all(nodes.For)}
    return found


def _loops(root: nodes.Template) -> Iterator[tuple[nodes.For, str]]:
    for loop in root.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name):
            yield loop, loop.target.name


def _is_list(node: nodes.Node | None, name: str) -> bool:
    """Return whether `node` reads the variable `name`, perhaps filtered or sliced."""
    core = _core(node)
    return isinstance(core, nodes.Name) and core.ctx == "load" and core.name == name


def _is_content(node: nodes.Node | None, name: str) -> bool:
    """Return whether `node` reads `name.content` or `name['content']`."""
    core = _core(node)
    if isinstance(core, nodes.Getattr):
        return core.attr == "content" and _is_name(core.node, name)
    if isinstance(core, nodes.Getitem):
        key = core.arg
        is_content = isinstance(key, nodes.Const) and key.value == "content"
        return is_content and _is_name(core.node, name)
    return False


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _core(node: nodes.Node | None) -> nodes.Node | None:
    """Take off filters, tests and slices, which leave a list a list."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node

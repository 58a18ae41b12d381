"""Canonical JSON (RFC 8785, JCS): one value, one sequence of bytes, on every machine.

Tools and answer schemas stand at the front of a prompt. Two processes that write the same tool
with its keys in another order, or 1.0 for 1, send different tokens and share no cache. JCS fixes
the order of keys (UTF-16 code units), the form of numbers (ECMAScript) and the escapes.

JCS is for what *we* put into a prompt. What a model or a client generated, above all a tool call's
`arguments`, is a string inside the JSON and stays what it was, byte for byte.

I-JSON (RFC 7493), on which JCS rests, holds numbers as IEEE doubles. An integer beyond 2^53 - 1
would be rounded by some readers and not by others, so it is refused, as are NaN, infinities, lone
surrogates and repeated keys.
"""

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from headstart.errors import TemplateError

MAX_DEPTH = 128
"""Deeper nesting is refused: no schema needs it, and recursion must end before Python's does."""

_MAX_SAFE_INTEGER = 2**53 - 1


class CanonicalJsonError(TemplateError):
    """The value has no canonical form; `path` says where, e.g. `$[0].function.parameters`."""

    def __init__(self, problem: str, path: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem
        self.path = path


def canonicalize(value: object) -> bytes:
    """Return the value's RFC 8785 bytes; does not change the order of lists.

    Args:
        value: None, bool, int, float, str, list or tuple, or a mapping with string keys.

    Raises:
        CanonicalJsonError: another type, a number that is no exact double, a lone surrogate, or
            nesting deeper than `MAX_DEPTH`.

    Source: RFC 8785 section 3.2.
    """
    parts: list[str] = []
    _write(value, parts, "$", 0)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as exc:
        raise CanonicalJsonError(
            "holds half of a surrogate pair; send whole characters", "$"
        ) from exc


def parse_strict(text: str) -> object:
    """Parse JSON that can be made canonical; unlike `json.loads` it refuses a repeated key and NaN.

    Raises:
        json.JSONDecodeError: the text is not JSON; has the line.
        CanonicalJsonError: a repeated key, NaN or an infinity, nesting beyond `MAX_DEPTH`, or an
            integer of more digits than Python reads.
    """
    try:
        value: object = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise CanonicalJsonError(f"is nested deeper than {MAX_DEPTH}", "$") from None
    except json.JSONDecodeError:
        raise
    except ValueError as exc:
        # Python's own limit on digits (4,300), which stops before `_integer` can complain.
        raise CanonicalJsonError(
            "has an integer of thousands of digits; write it as a string or leave it out", "$"
        ) from exc
    return value


def _write(value: object, parts: list[str], path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CanonicalJsonError(f"is nested deeper than {MAX_DEPTH}", path)
    if isinstance(value, str):
        parts.append(_string(value))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int):
        parts.append(_integer(value, path))
    elif isinstance(value, float):
        parts.append(_double(value, path))
    elif isinstance(value, Mapping):
        _write_object(value, parts, path, depth)
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            _write(item, parts, f"{path}[{index}]", depth + 1)
        parts.append("]")
    else:
        raise CanonicalJsonError(f"is a {type(value).__name__}, which JSON does not have", path)


def _write_object(value: Mapping[object, object], parts: list[str], path: str, depth: int) -> None:
    keys = [key for key in value if isinstance(key, str)]
    if len(keys) != len(value):
        raise CanonicalJsonError("has a key that is not a string", path)
    # RFC 8785 3.2.3: by UTF-16 code units, so U+1F600 (D83D …) comes before U+FB33.
    keys.sort(key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    parts.append("{")
    for index, key in enumerate(keys):
        parts.append(f"{',' if index else ''}{_string(key)}:")
        _write(value[key], parts, f"{path}.{key}", depth + 1)
    parts.append("}")


def _string(value: str) -> str:
    # The standard library's escapes without `ensure_ascii` are the ones of RFC 8785 3.2.2.2.
    return json.dumps(value, ensure_ascii=False)


def _integer(value: int, path: str) -> str:
    if abs(value) > _MAX_SAFE_INTEGER:
        raise CanonicalJsonError(
            f"an integer of {value.bit_length()} bits is beyond 2^53-1, which not every JSON "
            "reader keeps exactly (RFC 7493); write it as a string or leave it out",
            path,
        )
    return str(value)


def _double(value: float, path: str) -> str:
    """Return the number as ECMAScript's Number::toString does (RFC 8785 3.2.2.3)."""
    if not math.isfinite(value):
        raise CanonicalJsonError(f"{value} is not a JSON number", path)
    if value == 0:
        return "0"  # also -0, as ECMAScript has it
    sign = "-" if value < 0 else ""
    # repr gives the shortest digits that read back as the same double, as ECMAScript asks.
    mantissa, _, exponent_text = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent_text or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    return sign + _ecmascript(digits, point)


def _ecmascript(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    exponent = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{digits[0]}{'.' if count > 1 else ''}{digits[1:]}{exponent}"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise CanonicalJsonError("stands twice in one object; keep one", key)
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise CanonicalJsonError(f"{name} is not a JSON number", "$")

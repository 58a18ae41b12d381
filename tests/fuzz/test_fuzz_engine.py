"""The engine itself: it finds what is there, keeps it, and can be repeated."""

import random

import pytest

from fuzz.mutation import MAX_BYTES, Mutator
from fuzz.piece import MAX_PLACES, Finds, PieceResult
from fuzz.run import _ENGINES, Piece, plan, totals
from fuzz.run import run_piece as run_one
from fuzz.target import Target, kept_bytes, pieces, strict_json
from fuzz.targets import TARGETS
from fuzz.worker import run_piece


def made(seed: int, num: int = 200) -> list[bytes]:
    mutator = Mutator(random.Random(seed), [b"GET / HTTP/1.1\r\n\r\n"], [b"\r\n", b"chunked"])
    return [mutator.next() for _ in range(num)]


def test_a_seed_decides_every_input():
    """A campaign can be repeated."""
    assert made(1) == made(1)
    assert made(1) != made(2)
    assert all(len(data) <= MAX_BYTES for data in made(3, 2000))


def test_an_input_of_a_new_kind_becomes_a_seed():
    """Guidance without coverage."""
    mutator = Mutator(random.Random(1), [b"a"], [b"b"])
    mutator.note(b"marked", "kind")
    mutator.note(b"other", "kind")
    assert mutator.num_kinds == 1
    assert any(mutator.next().startswith(b"marked") for _ in range(300))
    assert not any(mutator.next().startswith(b"other") for _ in range(300))


@pytest.mark.parametrize("data", [b"", b"x", b"hello world, this is a text" * 3])
def test_pieces_are_the_input(data):
    """Cut, nothing lost, and the same each time."""
    parts = list(pieces(data))
    assert b"".join(parts) == data
    assert parts == list(pieces(data))
    assert all(parts)


def broken(data: bytes) -> str:
    if b"bug" in data:
        raise ValueError("found")
    return "fine"


def test_a_broken_property_is_found_and_kept(tmp_path):
    """The input lies in the folder of finds with its traceback; the piece goes on."""
    (tmp_path / "corpus" / "toy").mkdir(parents=True)
    (tmp_path / "corpus" / "toy" / "seed").write_bytes(b"a big u and a g")
    finds = Finds(tmp_path / "finds", "toy")
    result = run_piece(Target("toy", broken, (b"bu", b"g")), 3000, 1, tmp_path / "corpus", finds)
    assert result.num_cases == 3000
    (name,) = result.finds
    assert b"bug" in (tmp_path / "finds" / "toy" / name).read_bytes()
    assert "ValueError: found" in (tmp_path / "finds" / "toy" / f"{name}.txt").read_text()


def test_one_place_is_one_find(tmp_path):
    """Thousands of inputs that fail alike would hide the one that does not."""
    finds = Finds(tmp_path, "toy")
    for data in (b"bug", b"bug2"):
        with pytest.raises(ValueError) as caught:
            broken(data)
        finds.keep(data, caught.value)
    assert len(finds.names) == 1
    assert not finds.is_full
    assert MAX_PLACES > 1


def test_a_plan_gives_each_target_its_share():
    """And atheris every other piece, where coverage says something."""
    names = list(TARGETS)
    planned = plan(names, 10_000_000, 1, is_guided=True)
    assert abs(sum(piece.cases for piece in planned) - 10_000_000) < len(names)
    assert {piece.target for piece in planned} == set(names)
    assert {piece.target for piece in planned if piece.engine == "atheris"}.isdisjoint(
        name for name in names if TARGETS[name].is_live
    )
    assert len({piece.seed for piece in planned}) == len(planned)
    assert planned == plan(names, 10_000_000, 1, is_guided=True)
    assert all(piece.engine == "mutation" for piece in plan(names, 1000, 1, is_guided=False))


def test_a_piece_is_a_process_and_a_process_that_dies_is_a_find(tmp_path, monkeypatch):
    """The campaign goes on, and what the process said last is kept."""
    result = run_one(Piece("usage", "mutation", 50, 1), tmp_path)
    assert (result.num_cases, result.finds) == (50, [])
    monkeypatch.setitem(_ENGINES, "mutation", "fuzz.no_such_module")
    (name,) = run_one(Piece("usage", "mutation", 50, 1), tmp_path).finds
    assert "no_such_module" in (tmp_path / name).read_text()


def test_totals_add_up_by_target_and_engine():
    """The table's rows."""
    rows = totals(
        [
            PieceResult("sse", "mutation", 5, 2, ["find-a"], 1.0, 2.0, 30.0),
            PieceResult("usage", "mutation", 7),
            PieceResult("sse", "mutation", 6, 3, [], 1.0, 2.0, 20.0),
            PieceResult("sse", "atheris", 1),
        ]
    )
    assert [(row.target, row.engine, row.num_cases) for row in rows] == [
        ("sse", "atheris", 1),
        ("sse", "mutation", 11),
        ("usage", "mutation", 7),
    ]
    assert rows[1].finds == ["find-a"]
    assert (rows[1].num_kinds, rows[1].cpu_s, rows[1].peak_mb) == (3, 4.0, 30.0)


class Keeper:
    __slots__ = ("held", "number", "parts")

    def __init__(self) -> None:
        self.held = bytearray(b"x" * 10_000)
        self.parts = [b"y" * 1000, (b"z" * 1000,)]
        self.number = 3


def test_what_an_object_keeps_is_weighed():
    """Slots, and containers in them."""
    assert 12_000 < kept_bytes(Keeper()) < 13_000


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"\xff", b"{", b"[" * 100_000, b"1e999"])
def test_strict_json_is_strict(text):
    """The judge accepts nothing beyond the standard."""
    with pytest.raises(ValueError):
        strict_json(text)

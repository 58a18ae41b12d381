"""The watch over one replica's tokens."""

import asyncio
import json
import logging

import pytest

from headstart.engines.tokenizers import check as check_module
from headstart.engines.tokenizers.check import TokenCheck
from headstart.engines.tokenizers.comparison import Comparison
from headstart.errors import UpstreamError
from headstart.prompt.token_agreement import FIRST_RUN
from loopback import eventually

PARSED = {"messages": [{"role": "user", "content": "very secret"}]}
BODY = json.dumps(PARSED).encode()


class ScriptedComparer:
    """Gives the results it was given; an error is raised."""

    def __init__(self, *results):
        self.results = list(results)
        self.compared = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def probe(self, model):
        return self._next()

    async def compare(self, name, model, body, *, is_chat):
        self.compared.append((model, body, is_chat))
        await self.hold.wait()
        return self._next()

    def _next(self):
        result = self.results.pop(0) if self.results else Comparison(1)
        if isinstance(result, Exception):
            raise result
        return result


class Watch:
    """A running check, and what it told."""

    def __init__(self, *results, sample_s=60.0):
        self.comparer = ScriptedComparer(*results)
        self.told = []
        self.check = TokenCheck("r0", "m", self.comparer, sample_s, self.tell)
        self.task = asyncio.get_running_loop().create_task(self.check.run())

    def tell(self, is_agreed, reason):
        self.told.append((is_agreed, reason))

    async def end(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def sample_tasks():
    return [task for task in asyncio.all_tasks() if "sample" in task.get_name()]


@pytest.fixture
async def watch(monkeypatch):
    monkeypatch.setattr(check_module, "_RETRY_S", (0.0,))
    watches = []

    def begin(*results, **options):
        watches.append(Watch(*results, **options))
        return watches[-1]

    yield begin
    for each in watches:
        await each.end()


async def test_probes_come_first(watch):
    """And are enough."""
    watched = watch(Comparison(7))
    assert not watched.check.is_agreed
    await eventually(lambda: watched.told)
    assert watched.told == [(True, "")]
    assert watched.check.is_agreed


async def test_probes_are_asked_again_until_the_engine_answers(watch):
    """An engine that starts is no difference."""
    watched = watch(UpstreamError("x"), UpstreamError("y"), Comparison(7))
    await eventually(lambda: watched.told)
    assert watched.told == [(True, "")]


async def test_a_difference_is_told_and_logged_once(watch, caplog):
    """Without a word of a prompt."""
    watched = watch(Comparison(3, "probe tools: 5 tokens here, 6 by the engine"))
    await eventually(lambda: watched.told)
    watched.check.answered(5, 6)
    assert watched.told == [(False, "probe tools: 5 tokens here, 6 by the engine")]
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "r0" in record.getMessage()
    assert "probe tools" in record.getMessage()


async def test_without_tokenize_the_counts_decide(watch):
    """A run of them makes the agreement, one ends it."""
    watched = watch(Comparison(0))
    for _ in range(FIRST_RUN):
        assert not watched.told
        watched.check.answered(10, 10)
    watched.check.answered(10, 11)
    assert [is_agreed for is_agreed, _ in watched.told] == [True, False]
    assert watched.check.statistics().num_differences == 1


async def test_a_request_is_sampled_once_in_so_long(watch):
    """And only one at a time."""
    watched = watch(Comparison(1), sample_s=60.0)
    await eventually(lambda: watched.told)
    check, comparer = watched.check, watched.comparer
    assert check.wants_sample(100.0)
    comparer.hold.clear()
    check.sample("m", BODY, 100.0, is_chat=True)
    assert not check.wants_sample(159.0)
    check.sample("m", BODY, 159.0, is_chat=True)
    assert check.wants_sample(160.0)
    check.sample("m", BODY, 161.0, is_chat=True)
    comparer.hold.set()
    await eventually(lambda: check.statistics().num_samples == 1)
    check.sample("adapter", BODY, 162.0, is_chat=False)
    await eventually(lambda: check.statistics().num_samples == 2)
    assert comparer.compared == [("m", PARSED, True), ("adapter", PARSED, False)]


async def test_sampling_can_be_switched_off(watch):
    """Then no request is sent twice."""
    watched = watch(sample_s=0.0)
    assert not watched.check.wants_sample(1e9)
    watched.check.sample("m", BODY, 1e9, is_chat=True)
    await eventually(lambda: watched.told)
    assert watched.comparer.compared == []


async def test_a_sample_that_differs_ends_the_agreement(watch, caplog):
    """And checks that agree bring it back."""
    different = Comparison(1, "a sample: 5 tokens here, 6 by the engine")
    watched = watch(Comparison(1), different, Comparison(1))
    await eventually(lambda: watched.told)
    watched.check.sample("m", BODY, 100.0, is_chat=True)
    await eventually(lambda: len(watched.told) == 2)
    watched.check.sample("m", BODY, 200.0, is_chat=True)
    await eventually(lambda: watched.check.statistics().num_samples == 2)
    for _ in range(FIRST_RUN - 1):
        watched.check.answered(10, 10)
    assert [is_agreed for is_agreed, _ in watched.told] == [True, False, True]
    assert "secret" not in caplog.text


async def test_a_sample_without_an_answer_is_no_evidence(watch):
    """Nor one that the engine refuses."""
    watched = watch(Comparison(1), UpstreamError("x"), Comparison(0))
    await eventually(lambda: watched.told)
    for at in (100.0, 200.0):
        watched.check.sample("m", BODY, at, is_chat=True)
        await eventually(lambda: not sample_tasks())
    assert len(watched.comparer.compared) == 2
    assert watched.check.is_agreed
    assert watched.check.statistics().num_samples == 0


async def test_a_body_that_is_no_json_is_no_sample(watch):
    """Its engine has said so."""
    watched = watch(Comparison(1))
    await eventually(lambda: watched.told)
    watched.check.sample("m", b"[", 100.0, is_chat=True)
    await eventually(lambda: not sample_tasks())
    assert watched.check.is_agreed
    assert watched.comparer.compared == []


async def test_an_engine_that_comes_back_is_probed_anew(watch):
    """Until then nothing is known of it."""
    watched = watch(Comparison(1), Comparison(1))
    await eventually(lambda: watched.told)
    watched.check.restarted()
    assert watched.told[1][0] is False
    await eventually(lambda: len(watched.told) == 3)
    assert watched.told[2] == (True, "")


async def test_an_end_leaves_no_sample_behind(watch):
    """Its task ends with the check."""
    watched = watch(Comparison(1))
    await eventually(lambda: watched.told)
    watched.comparer.hold.clear()
    watched.check.sample("m", BODY, 100.0, is_chat=True)
    await eventually(lambda: watched.comparer.compared)
    await watched.end()
    assert not sample_tasks()

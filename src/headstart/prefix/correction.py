"""What an answer changes in the approximate index."""

from headstart.prefix.approximate import ApproximateIndex
from headstart.prefix.calibration import Calibration, Verdict
from headstart.prefix.entries import SIZE_UNIT_BYTES, Standing
from headstart.prefix.known_replica import KnownReplica
from headstart.prefix.token_counts import is_text, measure, settle
from headstart.prompt.fingerprint import PromptKeys


def correct(
    index: ApproximateIndex,
    replica: KnownReplica,
    standing: Standing,
    cached_tokens: int,
    input_tokens: int | None,
    now: float,
) -> None:
    """Drop from the approximate index what an answer shows to be wrong.

    Args:
        index: holds the prompt for the replica, since it was sent.
        replica: that answered.
        standing: what it was believed to hold of the prompt then.
        cached_tokens: what it did hold.
        input_tokens: of the prompt; None if the engine did not say.
        now: monotonic seconds.

    Cost: O(1) if what was believed was true, else O(what is dropped).
    """
    calibration, held, root = replica.calibration, replica.held, standing.root
    verdict = calibration.judge(standing, cached_tokens, input_tokens)
    if verdict is Verdict.KEPT:
        _measure(index, calibration, standing, cached_tokens)
    elif verdict is Verdict.RESET:
        held.clear()
        calibration.failure_seen(now)
        if root is not None and not calibration.is_capacity_known:
            calibration.lower_capacity(standing.clock - root.clock)
    elif verdict in (Verdict.EVICTED, Verdict.GONE):
        # Least recently used goes first: what is older than what went has gone as well.
        oldest = root.at if verdict is Verdict.GONE and root else standing.end_touched
        if oldest is not None:
            held.forget_until(oldest)
        younger_bytes = held.size * SIZE_UNIT_BYTES
        calibration.lower_capacity(int(younger_bytes * replica.tokens_per_byte))
        calibration.failure_seen(now)
    elif verdict is Verdict.MORE and held.num_evicted:
        calibration.raise_capacity()
    if calibration.ttl_s != held.ttl_s:
        index.set_ttl(replica.slot, calibration.ttl_s)


def count(
    index: ApproximateIndex,
    replica: KnownReplica,
    prompt: PromptKeys,
    input_tokens: int,
    output_tokens: int | None,
) -> None:
    """Take in how many tokens a prompt has, and what the engine has beyond its last block."""
    tokens_per_byte = replica.tokens_per_byte
    tail = settle(index.entries, prompt, input_tokens, tokens_per_byte)
    if tail is None:  # counted before
        tail = 0
    elif is_text(prompt.num_bytes, input_tokens):
        replica.calibration.scale.learn(prompt.num_bytes, input_tokens)
    else:
        index.resize(prompt, tokens_per_byte)
    end = replica.held.ends.get(prompt.keys[-1])
    if end is not None:  # The last token generated is never computed.
        end.extra_tokens = tail + output_tokens - 1 if output_tokens else tail


def _measure(
    index: ApproximateIndex, calibration: Calibration, standing: Standing, cached_tokens: int
) -> None:
    keys, depth = standing.prompt.keys, standing.depth
    if depth < len(keys) and standing.extra_tokens:
        calibration.learn_output(standing, cached_tokens)
    elif depth < len(keys) and depth == standing.warm_depth:
        entry = index.entries.get(keys[depth - 1])
        if entry is not None:
            measure(entry, cached_tokens, calibration.block_size)

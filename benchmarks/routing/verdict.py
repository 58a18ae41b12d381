"""Who wins where: each policy against the best of all others, cell by cell."""

from collections import defaultdict
from collections.abc import Sequence
from math import exp, log
from statistics import mean
from typing import Any

FIGURES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s")
_TIE = 0.02

Cells = dict[tuple[str, float, str], dict[str, float]]


def verdict(runs: Sequence[dict[str, Any]], ours: str) -> str:
    """Return the tables: all policies, then the cells of `ours`, then hit ratios.

    A policy is named `policy` or, with other parameters, `policy:tag`.
    """
    cells = _cells(runs, FIGURES)
    policies = sorted({policy for by_policy in cells.values() for policy in by_policy})
    lines = [
        "| policy | geometric mean | worst cell | wins / ties / losses |",
        "| --- | --- | --- | --- |",
    ]
    rows = []
    for policy in policies:
        ratios = {
            cell: by_policy[policy] / min(_others(by_policy, policy).values())
            for cell, by_policy in cells.items()
            if policy in by_policy and _others(by_policy, policy)
        }
        worst = max(ratios, key=ratios.__getitem__)
        wins = sum(ratio < 1 - _TIE for ratio in ratios.values())
        losses = sum(ratio > 1 + _TIE for ratio in ratios.values())
        middle = exp(mean(log(ratio) for ratio in ratios.values()))
        rows.append(
            (
                middle,
                f"| {policy} | {middle:.3f} | {ratios[worst]:.2f} ({_name(worst)}) "
                f"| {wins} / {len(ratios) - wins - losses} / {losses} |",
            )
        )
    lines += [row for _, row in sorted(rows)]
    return "\n".join([*lines, "", *_detail(cells, ours), "", *_hits(runs, ours)])


def _detail(cells: Cells, ours: str) -> list[str]:
    lines = [f"| cell | {ours} | best other | by | ratio |", "| --- | --- | --- | --- | --- |"]
    for cell in sorted(cells):
        others = _others(cells[cell], ours)
        if ours not in cells[cell] or not others:
            continue
        best = min(others, key=others.__getitem__)
        own, least = cells[cell][ours], others[best]
        lines.append(f"| {_name(cell)} | {own:.3f} | {least:.3f} | {best} | {own / least:.2f} |")
    return lines


def _hits(runs: Sequence[dict[str, Any]], ours: str) -> list[str]:
    lines = ["| hit ratio | ours | best other | by |", "| --- | --- | --- | --- |"]
    for cell, by_policy in sorted(_cells(runs, ("hit_ratio",)).items()):
        others = _others(by_policy, ours)
        if ours in by_policy and others:
            best = max(others, key=others.__getitem__)
            lines.append(
                f"| {cell[0]} {cell[1]:.0%} | {by_policy[ours]:.3f} | {others[best]:.3f} | {best} |"
            )
    return lines


def _cells(runs: Sequence[dict[str, Any]], figures: Sequence[str]) -> Cells:
    """Return means over seeds, by workload, load and figure, of each policy."""
    values: dict[tuple[str, float, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        policy = f"{run['policy']}:{run['tag']}" if run["tag"] else run["policy"]
        for figure in figures:
            values[run["workload"], run["load"], figure][policy].append(run[figure])
    return {
        cell: {policy: mean(found) for policy, found in by_policy.items()}
        for cell, by_policy in values.items()
    }


def _others(by_policy: dict[str, float], policy: str) -> dict[str, float]:
    """Return the rivals: not the policy itself, and not the same with other parameters."""
    name = policy.partition(":")[0]
    return {other: value for other, value in by_policy.items() if other.partition(":")[0] != name}


def _name(cell: tuple[str, float, str]) -> str:
    workload, load, figure = cell
    return f"{workload} {load:.0%} {figure.removeprefix('ttft_').removesuffix('_s').upper()}"

"""`unisono simulate`: what it prints, and how it says no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unisono.base.tuning import save
from unisono.base.tuning_results import LIMITS, HostCosts, Rates, TuningResults
from unisono.base.units import format_seconds
from unisono.schedule.choose.lane_limits import Processors
from unisono.tools.cli import app


def say(*arguments: str, fails: int = 0) -> str:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert done.exit_code == fails, done.output
    return done.output


def prices(*arguments: str) -> dict[str, dict[str, Any]]:
    found = json.loads(say(*arguments, "--json"))
    return {one["name"]: one for one in found["prices"]}


def test_algorithms_come_best_first() -> None:
    seen = say("all_reduce", "--hosts", "4x2", "--bytes", "1MiB", "--network", "fat-tree:k=4")
    lines = seen.splitlines()
    assert lines[0] == "all_reduce · 8 ranks on 4 hosts (4x2) · 1 MiB · fat-tree:k=4"
    assert lines[1] == "between hosts 10 Gbit/s, 100 µs; between ranks of a host 40 Gbit/s, 1 µs; a rank adds 10 GB/s"
    found = list(prices("all_reduce", "--hosts", "4x2", "--bytes", "1MiB", "--network", "fat-tree:k=4").values())
    able = [one for one in found if not one["priced_only"]]
    assert found == sorted(found, key=lambda one: (bool(one["priced_only"]), one["seconds"]))
    names = [line.split("  ")[0] for line in lines[4:]]
    only = names.index("priced only: a call cannot choose these over hosts")
    assert names[: len(able)] == [one["name"].removeprefix("all_reduce.") for one in able]
    assert names[only + 2 :] == [one["name"].removeprefix("all_reduce.") for one in found[len(able) :]]
    assert "spanning circulant ×2" in names[:only]
    assert {"ring of all ranks", "spanning circulant ×1"} <= {*names[only:]}
    best = able[0]
    assert f'{names[0]} (algorithm="{best["algorithm"]}"): ' in lines[len(able) + 5]
    assert f"= {format_seconds(best['seconds'])}, on the way of the rank that is ready last" in lines[len(able) + 5]
    assert "transfers" in seen
    assert "host" in seen


def test_one_algorithm_and_what_slows_it() -> None:
    ring = "all_gather.spanning ring ×1"
    plain = prices("all_gather.ring", "--hosts", "4x1")[ring]
    slow = prices("all_gather.ring", "--hosts", "4x1", "--slow-link", "2-switch:x0.1")[ring]
    late = prices("all_gather.ring", "--hosts", "4x1", "--late-rank", "1:500ms")[ring]
    assert slow["seconds"] == pytest.approx(10 * plain["seconds"], rel=0.1)
    assert slow["link"] in ("host2-switch", "switch-host2")
    assert late["seconds"] > plain["seconds"] + 0.4
    rooted = prices("broadcast", "--hosts", "2+1", "--root", "2")
    assert {"broadcast.knomial", "broadcast.spanning binomial ×1"} <= set(rooted)


def test_links_are_those_given() -> None:
    fast = prices("all_gather.ring", "--hosts", "4x1", "--link", "100Gbit,1us")["all_gather.spanning ring ×1"]
    plain = prices("all_gather.ring", "--hosts", "4x1")["all_gather.spanning ring ×1"]
    assert fast["seconds"] < plain["seconds"] / 3
    one = prices("all_gather.direct", "--hosts", "1x4", "--network", "two-levels", "--inside", "1GB")[
        "all_gather.direct"
    ]
    assert one["seconds"] == pytest.approx(3 / 4 * (16 << 20) / 1e9, rel=0.1)


def test_hosts_like_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = HostCosts(2e-6, 5e-7, (Rates(1 << 20, 1e-10, 2e-10, 5e-11),))
    monkeypatch.setenv("UNISONO_MEASURED", str(tmp_path / "figures.json"))
    assert "run `unisono tune`" in say("all_reduce", "--network", "measured", fails=2)
    save(TuningResults("2026-11-22", {name: most for name, (_, most) in LIMITS.items()}, costs))
    here = prices("reduce.linear", "--hosts", "1x3", "--network", "measured", "--bytes", "256KiB")["reduce.linear"]
    assert here["seconds"] == pytest.approx(2e-6 + 5e-7 + (1 << 18) * (1e-10 + 2 * 2e-10 + 2 * 5e-11), rel=1e-3)
    two = prices("reduce.linear", "--hosts", "2x1", "--network", "measured", "--bytes", "256KiB", "--link", "1GB,50us")
    assert two["reduce.spanning linear ×1"]["seconds"] == pytest.approx(50e-6 + (1 << 18) * (1e-9 + 5e-11), rel=0.01)
    monkeypatch.setattr(Processors, "here", lambda *_: Processors(16, 3, None, 16))
    monkeypatch.setenv("UNISONO_LANES", "5")
    monkeypatch.setenv("UNISONO_LANE_BYTES", "64KiB")
    save(
        TuningResults(
            "2026-11-22", {name: most for name, (_, most) in LIMITS.items()}, costs._replace(lanes=5, gain=4.0)
        )
    )
    here = prices("reduce.linear", "--hosts", "1x3", "--network", "measured", "--bytes", "256KiB")["reduce.linear"]
    assert here["seconds"] == pytest.approx(2e-6 + 5e-7 + (1 << 18) * (1e-10 + 2 * 2e-10 + 2 * 5e-11) / 4, rel=1e-3)
    assert "leave out --inside" in say("reduce", "--network", "measured", "--inside", "5GB", fails=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_redcue"], "'all_redcue' is no collective: did you mean all_reduce"),
        (["all_reduce.rnig"], "all_reduce.rnig is no algorithm for 512 ranks"),
        (["all_reduce", "--network", "ring"], "'ring' is no network"),
        (["all_reduce", "--late-rank", "512:1ms"], "expected one of the ranks 0 to 511 and a time"),
        (["all_reduce", "--late-rank", "soon"], "expected one of the ranks 0 to 511 and a time"),
        (["all_reduce", "--slow-link", "1-2:x0.1"], "has no cable 1-2"),
    ],
)
def test_what_it_refuses(arguments: list[str], message: str) -> None:
    assert message in say(*arguments, fails=2)

"""The benchmark of faults in groups of Gloo, watched and not: a scene, and the report."""

from __future__ import annotations

from benchmarks.faults.scene import Said, Seen, play
from benchmarks.faults.watched import watched_markdown


def test_a_dead_rank_is_named_where_it_is_watched() -> None:
    without, watched = play("is killed", watched=False), play("is killed", watched=True)
    for rank in range(3):
        assert without[rank].told is None
        silent, end = without[rank].end, watched[rank].end
        assert silent
        assert "rank 3" not in silent.line
        assert end
        assert end.line.startswith("unisono.PeerGone: rank 3 (pid ")
        assert f"killed by signal 9 (SIGKILL) while rank {rank} waited for it in all_reduce(float32[25000]" in end.line
    assert watched[3] == without[3] == Seen(None, Said(0.0, "ended by SIGKILL"))


def test_the_report() -> None:
    late, early = Seen(None, Said(10.0, "Error: no | time left")), Seen(Said(0.02, "unisono: rank 3 died"), None)
    said = Seen(Said(0.02, "unisono: rank 3 died"), Said(0.03, "unisono.PeerGone: rank 3 died"))
    mute = Seen(None, None)
    scenes = {"dies": ({0: late, 1: late, 2: late, 3: mute}, {0: said, 1: said, 2: said, 3: mute}),
              "hangs": ({0: mute, 1: late, 2: mute, 3: mute}, {0: early, 1: early, 2: early, 3: mute})}  # fmt: skip
    text = "\n".join(watched_markdown({"date": "a day"}, scenes))
    assert "| dies | 10 s | never | 10 s | 20 ms | 20 ms | 30 ms |" in text
    assert "| hangs | 10 s | never | never | 20 ms | 20 ms | never |" in text
    assert (
        "|  | 2 | 10 s: Error: no \\| time left | 20 ms: unisono: rank 3 died<br>30 ms: unisono.PeerGone: rank 3 died |"
        in text
    )
    assert "|  | 3 | has not ended | has not ended |" in text

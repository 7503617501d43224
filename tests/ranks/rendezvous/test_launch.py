"""Which rank am I? Arguments and environment in, a frozen answer out."""

import pytest

from unisono.base.errors import ArgumentError
from unisono.ranks.rendezvous.which_rank import Launch, detect

MEET = {"MASTER_ADDR": "node-a", "MASTER_PORT": "41001"}
TORCHRUN = {
    **MEET,
    "RANK": "2",
    "WORLD_SIZE": "5",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "3",
}
STEP = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_one_process_without_a_launcher():
    launch = detect({"PATH": "/bin"})
    assert (launch.rank, launch.size, launch.kind) == (0, 1, "single")
    assert "RANK" in launch.why


def test_torchrun():
    why = "RANK=2 and WORLD_SIZE=5 are set"
    assert detect(TORCHRUN) == Launch(
        2, 5, "torchrun", why, "node-a", 41001, True, "unisono/job7/3", name="torchrun job7/3"
    )


def test_a_restart_has_keys_of_its_own():
    assert detect(TORCHRUN).prefix != detect({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "4"}).prefix


def test_variables_without_torchrun():
    launch = detect({**MEET, "RANK": "0", "WORLD_SIZE": "2"})
    assert (launch.kind, launch.store_runs) == ("environment", False)


def test_arguments():
    launch = detect(MEET, rank=1, size=3)
    assert (launch.rank, launch.size, launch.kind, launch.port) == (1, 3, "arguments", 41001)


def test_arguments_may_repeat_the_environment():
    assert detect(TORCHRUN, rank=2, size=5).kind == "arguments"


def test_one_rank_needs_no_meeting_place():
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).port == 0
    assert detect({}, rank=0, size=1).kind == "arguments"


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({}, {"rank": 1}, "both or neither"),
        ({}, {"size": 2}, "both or neither"),
        (TORCHRUN, {"rank": 1, "size": 5}, "rank=1 but RANK=2"),
        (TORCHRUN, {"rank": 2, "size": 4}, "size=4 but WORLD_SIZE=5"),
        ({"RANK": "0"}, {}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, {}, "RANK is not"),
        ({**TORCHRUN, "RANK": "two"}, {}, "RANK='two'"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, {}, "MASTER_PORT='http'"),
        ({**TORCHRUN, "RANK": "5"}, {}, "below the size"),
        ({**TORCHRUN, "RANK": "-1"}, {}, "at least 0"),
        ({}, {"rank": 0, "size": 0}, "below the size"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "MASTER_ADDR"),
        ({"MASTER_ADDR": "node-a"}, {"rank": 0, "size": 2}, "MASTER_PORT"),
        ({**STEP, "MASTER_ADDR": "node-a"}, {}, "MASTER_ADDR=node-a is set but MASTER_PORT is not"),
        ({**STEP, "MASTER_PORT": "41001"}, {}, "MASTER_PORT=41001 is set but MASTER_ADDR is not"),
    ],
)
def test_contradictions_are_refused(environ, arguments, words):
    with pytest.raises(ArgumentError, match=words):
        detect(environ, **arguments)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({**MEET, "RANK": "0", "WORLD_SIZE": "2"}, ""),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}, "torchrun job7/3"),
        ({**MEET, **STEP}, "Slurm 42.3"),
        ({**MEET, **STEP, "RANK": "0", "WORLD_SIZE": "2"}, "Slurm 42.3"),
        ({**MEET, **STEP, "RANK": "0", "WORLD_SIZE": "4"}, ""),  # one srun for each node
        ({**MEET, "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, "MPICH"),  # it has a name on each host
        ({**MEET, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "x@1"}, "Open MPI x@1"),
    ],
)
def test_the_name_of_a_job_is_the_same_on_all_its_ranks(environ, name):
    assert detect(environ).name == name

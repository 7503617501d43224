"""The runbook of several hosts, in two network namespaces: the script for Slurm, and the manifest for Kubernetes.

There is no Slurm and no Kubernetes. A program in srun's place starts ranks with the variables that srun sets; a shell
runs the command of a pod, with the variable and the name that Kubernetes gives it.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.test_cluster import SCRIPT, Clusters
from tests.support.cluster import PORT
from tests.support.markdown import ROOT, blocks

pytestmark = pytest.mark.long

GUIDES = ROOT / "docs" / "guides"
TORCH = """
import datetime, os, torch, torch.distributed as dist
seconds = int(os.environ.get("TIMEOUT_S", 100))
dist.init_process_group("unisono", timeout=datetime.timedelta(seconds=seconds))
tensor = torch.tensor([10**dist.get_rank()])
dist.all_reduce(tensor)
os.write(1, f"{dist.group.WORLD.group.hosts.text} {tensor.item()}\\n".encode())
dist.destroy_process_group()
"""
SRUN = """
import os, subprocess, sys
nodes, each = (int(os.environ[name]) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
def start(rank):
    node = rank // each
    variables = {
        "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"], "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NUM_TASKS": nodes * each, "SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": rank % each,
    }
    words = ["ip", "netns", "exec", os.environ["NAMESPACES"].split()[node], *sys.argv[1:]]
    return subprocess.Popen(words, env={**os.environ, **{name: str(value) for name, value in variables.items()}})
sys.exit(max(process.wait() for process in [start(rank) for rank in range(nodes * each)]))
"""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.parametrize("program", [TORCH, SCRIPT], ids=["torch", "own"])
def test_slurm(cluster: Clusters, tmp_path: Path, program: str) -> None:
    (script,) = [block.text for block in blocks(GUIDES / "hosts.md") if "#SBATCH" in block.text]
    options = dict(line.removeprefix("#SBATCH --").split() for line in script.splitlines() if "#SBATCH" in line)
    nodes, each = int(options["nodes"]), int(options["ntasks-per-node"])
    two = cluster(f"{nodes}x{each}")
    if program == SCRIPT:
        script = "#!/bin/bash\nsrun python train.py\n"
    names = f"#!/bin/sh\necho {two.address(0)}\necho {two.address(1)}\n"
    programs = {"train.sh": script, "train.py": program, "srun": f"#!{sys.executable}{SRUN}", "scontrol": names}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    variables = {
        "SLURM_JOB_ID": 4711, "SLURM_JOB_NODELIST": "10.77.0.[1-2]", "SLURM_NNODES": nodes,
        "SLURM_NTASKS": nodes * each, "SLURM_NTASKS_PER_NODE": each, "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        "NAMESPACES": " ".join(two.names), "PATH": f"{tmp_path}:{PATH}",
    }  # fmt: skip
    two.start(0, "-c", f"import os; os.chdir({str(tmp_path)!r}); os.execl('train.sh', 'train.sh')", env=variables)
    assert two.finish()[0].splitlines() == ["2x4 11111111"] * 8


def test_kubernetes(cluster: Clusters, tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks(GUIDES / "containers.md") if block.language == "yaml"]
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (tmp_path / "train.py").write_text(TORCH)
    two = cluster(f"{job['spec']['completions']}x4")
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert service["metadata"]["name"] == pod["subdomain"]
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{two.address(0)} {first}\n")
    program = f"""if True:
        import os, subprocess
        subprocess.run(["mount", "--bind", "hosts", "/etc/hosts"], check=True)
        os.execvp({container["command"][0]!r}, {container["command"] + container["args"]!r})"""
    for number in range(2):
        env = {"JOB_COMPLETION_INDEX": number, "PATH": PATH}
        two.start(number, "-c", f"import os; os.chdir({str(tmp_path)!r})\n{program}", env=env, container=True)
    assert [line for said in two.finish() for line in said.splitlines()] == ["2x4 11111111"] * 8


def test_lines_of_a_start(cluster: Clusters) -> None:
    """Each line of the page's table is printed if all ranks come, or those of one machine only."""
    said = ""
    for ranks in (0, 1, 2, 3), (0, 1), (2, 3):
        two = cluster("2x2")
        env = {"WORLD_SIZE": 4, "MASTER_ADDR": two.address(0), "MASTER_PORT": PORT, "UNISONO_STALL_WARNING_S": 2,
               "UNISONO_DEBUG": 1, "TIMEOUT_S": 8}  # fmt: skip
        for program in [two.start(rank // 2, "-c", TORCH, env={"RANK": rank, **env}) for rank in ranks]:
            said += program.communicate(timeout=60)[1]
        two.close()
    page = (GUIDES / "hosts.md").read_text().partition("## What a start prints")[2].partition("\n## ")[0]
    lines = re.findall(r"`((?:unisono:|\[rank|Timed|The client).*?)` \|", page)
    assert len(lines) == 5
    for line in lines:
        words = re.sub(r"\d+", r"\\d+", re.escape(line)).replace(r"\.\.\.", ".*")
        assert re.search(words, said), line

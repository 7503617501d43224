"""GOAL, the input of LogGOPSim and ATLAHS: a table as sends, receives and calculations of each rank. Out only.

Grammar: `txt2bin.re` of LogGOPSim. Model: LogGOPS (Hoefler, Schneider and Lumsdaine 2010). Times are nanoseconds.
"""

from ..simulate import Hardware
from ..table import Schedule
from .operations import CALC, SEND, operations


def parameters(hardware: Hardware) -> str:
    """The parameters of LogGOPSim with which a schedule takes as long as the price model says."""
    link = hardware.between
    return f"-L {round(link.latency_s * 1e9)} -o 0 -g 0 -G {1e9 / link.bytes_per_s:.6g} -O 0 -S {2**31 - 1}"


def write(schedule: Schedule, nbytes: int, hardware: Hardware) -> str:
    """The schedule of all ranks."""
    out = [f"num_ranks {schedule.ranks}"]
    for rank, of_rank in enumerate(operations(schedule, nbytes, hardware)):
        lines, joined = list[str](), dict[tuple[int, ...], str]()
        for number, op in enumerate(of_rank):
            label, needs = f"l{number}", op.needs
            if len(needs) > 1 and needs not in joined:
                joined[needs] = f"j{number}"
                lines += [f"j{number}: calc 0", *(f"j{number} requires l{need}" for need in needs)]
            if op.kind == CALC:
                lines.append(f"{label}: calc {round(op.seconds * 1e9)}")
            else:
                way = "to" if op.kind == SEND else "from"
                lines.append(f"{label}: {op.kind} {op.nbytes}b {way} {op.peer} tag {op.round}")
            if needs:
                lines.append(f"{label} requires {joined.get(needs) or f'l{needs[0]}'}")
        out += ["", f"rank {rank} {{", *lines, "}"]
    return "\n".join([*out, ""])

"""Groups. `world_group` makes the group of all ranks of a job, with `world_over_hosts` on several hosts. `sub_groups`
makes smaller ones in its memory.

`rank_liveness` tells whether a member is still there. `abort` tells whether a rank has aborted the group. After a
failure, the survivors agree which ranks a smaller group leaves out (`agreement`), and make it (`survivors`), in memory
that its first member lends.
"""

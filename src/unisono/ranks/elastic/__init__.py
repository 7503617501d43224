"""Groups that become smaller and larger: survivors agree on the failed ranks, new processes join.

Smaller: `survivors` runs the `agreement`, and makes the smaller group in memory that its first living member lends.
Larger: a new process asks the job's join listener (`join_request`, `join_listener`), and the first rank of the group
lets it in (`join_admission`) when all members call `grow`. A process that was not let in asks again.
"""

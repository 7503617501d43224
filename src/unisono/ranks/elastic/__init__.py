"""New processes join a group.

A new process asks the job's join listener (`join_request`). The first rank of the group lets the
process in (`join_admission`) when all members call `grow`. A process that was not let in asks again.

Over hosts, a new process asks at a store (`store_door`). The first rank chooses (`admission_over_hosts`), and members
and newcomers make a new world (`larger_world`).
"""

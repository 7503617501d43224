"""How processes find each other, under any launcher, and what they must agree on to form the group of all ranks.

They meet at a key-value store of torch's (`stores`). There, each process writes its identity, with the random name of
a Unix socket. Rank 0 publishes which ranks share a host. The first rank of each host makes an arena, and hands its
file descriptor to the others through the socket. When all have it, rank 0 ends the meeting.
Ranks do not trust the store (`entries`): the kernel says which processes send and get the descriptor (`handover`).
"""

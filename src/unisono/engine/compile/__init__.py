"""From a table to one program per rank, and its proof.

`compile_schedule` makes the programs, `prove_programs` proves them, and `bind` adds dtype, op and sizes: a plan, which
the kernel runs, one compiled loop (`kernels/interpret`). Read `program`, `versions`, `compile_schedule`, `plan`, `far`.

A program is what one rank does, row by row: it makes moves (it copies a chunk or combines several), and it waits for
other ranks. A step is the number of a move, counted for each rank.

Ranks share two kinds of memory. A rank's control line has the words, integers of 64 bits, for which the others wait:
the step that the rank has done last (to write it there is to post it), and the number and the signature of its call.
Its staging area has copies of what the others read, if they do not reach its tensors; a staging slot there has room for
one chunk. The others reach a tensor in shared memory, in the heap of its rank, which all have mapped. All other tensors
are private.

A block is the part of a tensor that belongs to one rank, as in an all_gather; otherwise, the whole tensor is one block.

The gate: before it a rank writes only into its own staging area. At the gate the rank publishes the number and the
signature of its call, and waits until all ranks have published theirs. Behind the gate every rank knows that all ranks
make the same call. So a call that does not match touches no tensor, every rank finds the same disagreement, and the
group goes on after it. An algorithm needs a first synchronisation anyway, and the gate is that one: it costs one
comparison per peer.

The signature: a `digest` of the record of the call (collective, op, dtype, sizes, root, algorithm), of the table and of
the settings that shape programs. Two different calls have the same signature with a probability of 2^-64, if no program
searches for such a pair: at a million mismatches a second, that is one in 585,000 years. The number of a call has 64
bits, too, and never wraps.

Segments: a long tensor passes through the two halves of a rank's staging area in turn, segment by segment: each is the
same slice of every block, cut into the chunks of the table. (`pipeline` cuts segments, too, but those are chunks here.)
Before the rank writes a half again, it waits until the readers of this half are past it.

A lowering says where the bytes of a table lie. There are three:

    staged         for private tensors: through staging areas, which stay in the cache
    zero copy      for tensors in shared memory: peers read and write them in place
    cross memory   for long private tensors: the program of zero copy, but moves to and from peers are system calls

A rank asks the system when it joins whether it may read the memory of the others (`RankEngine.crosses_memory`). A
tensor that system calls do not reach is found before the gate, and its call is staged. A refusal after the gate is an
error (PeerUnreachable), never a wrong value.

Over several hosts, what a rank of another host reads goes as a message, from a staging slot to a staging slot there
(`far`). A carrier, such as UCX, moves it (`engine.carrier`). Its transport is the functions by which the kernel calls
it.
"""

"""A running job, seen from outside: which jobs there are, what each rank does now, and for which ranks it waits."""

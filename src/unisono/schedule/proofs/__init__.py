"""Proofs that a table keeps the contract of its collective: exact, by symmetry, by random fingerprints."""

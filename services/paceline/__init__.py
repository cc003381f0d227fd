"""Paceline: a partitioned, replicated commit log over gRPC.

Read `model` for the vocabulary, `replication` for the rules, then `controller` and `broker`, which apply the rules.
"""

__version__ = "0.1.1.dev0"

"""Exit codes: 0 ok, 1 local failure, 2 usage, 3 negative result, 64 + gRPC status of a call, 130 interrupted.

This module imports nothing, because an interrupt may end the command while gRPC is being imported.
"""

LOCAL_FAILURE, USAGE, NEGATIVE_VERDICT, RPC_FAILURE, INTERRUPTED = 1, 2, 3, 64, 130

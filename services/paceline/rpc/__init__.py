"""gRPC: servers, channels, errors as statuses, and the retry policy.

Read `server.py` and `errors.py` first. `convert/` translates between messages and `model`, `admission/` limits
requests, `streams/` carries requests and responses in order on one stream, `watch/` serves watch streams.
"""

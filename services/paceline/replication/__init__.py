"""The rules of replication: ISR, high watermark, follower progress, truncation, delayed requests.

Pure functions and small classes without I/O; `paceline.broker` applies them.
"""

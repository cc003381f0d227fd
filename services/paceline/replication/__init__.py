"""The rules of replication: ISR, high watermark, follower progress, truncation, delayed operations.

Pure functions and small classes without I/O; `paceline.broker` uses them.
"""

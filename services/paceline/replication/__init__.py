"""The rules of replication: ISR, high watermark, follower progress, truncation, purgatory.

Plain functions and small classes; whoever applies them lives in `paceline.broker`.
"""

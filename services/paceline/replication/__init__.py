"""The rules of replication both roles share: ISR, high watermark, follower progress, truncation, purgatory. Plain functions and small classes."""

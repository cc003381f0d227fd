"""One replica on disk, in Kafka's own format: segments, indexes, epochs, producer state, recovery, checkpoints.

Storage is reached through `files.Files` only; `os_files.py` is the door to real files. Read `partition_log.py`
first, then `segment.py` and `log_manager.py`; `record_batch.py` is the codec. docs/architecture.md lists who does what.
"""

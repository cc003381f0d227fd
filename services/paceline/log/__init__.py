"""The log of one replica on disk, in Kafka's format: segments, indexes, epochs, producer state, recovery, checkpoints.

All files are reached through `files.Files`; `os_files.py` implements it for real files. Read `partition_log.py` first,
then `segment.py` and `log_manager.py`; `record_batch.py` is the codec. docs/architecture.md lists the files by subject.
"""

"""The sink: writes rows as record batches, with at-least-once or exactly-once delivery. Read `writer.py` first."""

"""Turn record values into typed Arrow columns, or say why one cannot be. No Spark. Read `parser.py` first."""

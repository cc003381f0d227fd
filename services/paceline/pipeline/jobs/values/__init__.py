"""Convert record values into typed Arrow columns, or return the reason of a failure. Read `parser.py` first."""

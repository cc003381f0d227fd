"""Configuration of topics, and dynamic settings of brokers.

Read `topic_configs.py` first.
"""

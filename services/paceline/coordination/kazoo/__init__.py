"""The client of a real ZooKeeper ensemble; the only package that imports kazoo.

Read `client.py` first.
"""

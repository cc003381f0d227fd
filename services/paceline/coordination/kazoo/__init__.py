"""The client of a ZooKeeper ensemble; the only package that imports kazoo.

Read `client.py` first.
"""

"""Certificates of a cluster: making them, reading the identity in one. Start with `certificates.py`.

The only room that imports `cryptography`; it comes with the extra ``security``.
"""

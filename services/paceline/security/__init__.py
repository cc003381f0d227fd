"""Certificates of a cluster: create them, and read the identity in a certificate. Read `certificates.py` first.

The only package that imports `cryptography`, which comes with the extra ``security``.
"""

"""Conversions between protobuf messages and `model`; one file for each kind of message.

``*_to_proto`` never fails. ``*_from_proto`` raises a typed error for invalid values in a *request*; it trusts the peer
that sent a *response* and does not check it.
"""

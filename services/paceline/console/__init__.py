"""A picture of replication at work, live from a cluster or played from a recording.

Start with `recording` (the file format), then `lens` (one moment) and `drawing` (its SVG); ``pages`` has
the other screens of a live cluster. The folder ``service`` holds all that touches the network: the collector, which is
a client like any other, and the web pages.
"""

"""One HTML page about a cluster, with plots, readable without a network. Read `page.py` first."""

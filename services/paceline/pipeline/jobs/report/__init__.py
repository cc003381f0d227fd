"""An HTML report about a cluster, with plots, readable offline. Read `page.py` first."""

"""The parts of the console with effects: the collector of a live cluster, and the web pages."""

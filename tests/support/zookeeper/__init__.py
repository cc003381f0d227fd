"""An in-memory ZooKeeper, compared with the real server by the same random commands."""

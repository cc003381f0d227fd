"""The copy of the state that makes a standby's failover fast.

Read `standby.py` first; `takeover.py` loads the states of a new controller, for `../failover.py`.
"""

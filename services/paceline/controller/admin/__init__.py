"""Administrative requests and their values.

Read `admin_requests.py` first; `event_handler.py` names the handler of each request.
"""

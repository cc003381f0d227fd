"""The console in Chromium, with Playwright and axe-core. `tools.py` finds and installs them."""

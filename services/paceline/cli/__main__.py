"""Run the ``paceline`` command for ``python -m paceline.cli`` and for ``spark-submit``, which takes this file."""

import sys
from pathlib import Path

# When run as a script, Python puts this folder first on the path, where `numbers.py` would hide the standard module.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]

from paceline.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()

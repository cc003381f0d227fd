"""``python -m paceline.cli`` is the ``paceline`` command; ``spark-submit`` takes this file."""

import sys
from pathlib import Path

# As a script, Python puts this folder first on the path, where `numbers` and others would hide the standard library's.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]

from paceline.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()

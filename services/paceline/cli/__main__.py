"""``python -m paceline.cli`` is the ``paceline`` command; ``spark-submit`` takes this file."""

from paceline.cli.main import main

if __name__ == "__main__":
    main()

"""UTF-8 text in one column; a null value stays null."""

from paceline.pipeline.jobs.values.columns import ValueColumn
from paceline.pipeline.jobs.values.parser import BadValueError


class TextParser:
    """Parses values that are UTF-8 text into the column ``text``."""

    columns = (ValueColumn("text", "string", optional=True),)

    def parse(self, value: bytes | None) -> tuple[str | None]:
        """Return the text.

        Raises:
            BadValueError: the value is not UTF-8.
        """
        try:
            return (None if value is None else value.decode("utf-8"),)
        except UnicodeDecodeError as error:
            raise BadValueError("invalid-utf8", str(error)) from error

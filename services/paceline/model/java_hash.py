"""Java's string hash and ``abs``, by which Kafka assigns topics and groups to numbers."""


def java_string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, a signed 32-bit integer over UTF-16 code units."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (31 * value + (encoded[index] << 8 | encoded[index + 1])) & 0xFFFFFFFF
    return _signed(value)


def java_index(value: int, count: int) -> int:
    """Return ``abs(value) % count`` for a 32-bit integer; Kafka's abs of the least integer is 0."""
    value = _signed(value & 0xFFFFFFFF)
    return (0 if value == -(1 << 31) else abs(value)) % count


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value

"""Classes with the names and arguments of kafka-python and aiokafka, for programs that migrate.

`kafka.py` has `KafkaConsumer` and `KafkaProducer`, `aiokafka.py` has `AIOKafkaConsumer` and `AIOKafkaProducer`. They
accept the usual arguments and refuse unknown arguments by name; docs/moving-from-kafka.md lists the differences.
"""

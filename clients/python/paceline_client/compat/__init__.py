"""Classes with the names and arguments of kafka-python and aiokafka, for programs that move here.

`kafka.py` has `KafkaConsumer` and `KafkaProducer`, `aiokafka.py` has `AIOKafkaConsumer` and `AIOKafkaProducer`. They
take the usual arguments and refuse unknown ones by name; docs/moving-from-kafka.md lists the differences.
"""

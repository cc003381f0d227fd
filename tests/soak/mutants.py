"""Send random and damaged messages to every method of every listener, and look for crashes and INTERNAL.

    python -m tests.soak.mutants [--count 20000] [--seed 1] [--only paceline.v1.LogService]

``--count`` mutants go to each service. A mutant is a message with random fields; half of them have damaged bytes. The
exit code is 1 if a process ended, a log has a traceback, or a call ended with INTERNAL or UNKNOWN. A call may wait for
300 ms.
"""

import argparse
import random
import re
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline.internal.v1 import controller_service_pb2, replica_manager_service_pb2, replication_service_pb2
from paceline.v1 import admin_service_pb2, group_service_pb2, log_service_pb2, metadata_service_pb2
from paceline_client import Admin, NewTopic

TARGETS = [
    ("broker", "CLIENT", log_service_pb2),
    ("broker", "CLIENT", group_service_pb2),
    ("broker", "CLIENT", metadata_service_pb2),
    ("broker", "REPLICATION", replication_service_pb2),
    ("broker", "CONTROL", replica_manager_service_pb2),
    ("controller", "CLIENT", admin_service_pb2),
    ("controller", "CLIENT", metadata_service_pb2),
    ("controller", "CONTROL", controller_service_pb2),
]
NUMBERS = [0, 1, 1, 2, 3, 1_000, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
TEXTS = ["", "rides", "rides", "rides", "g", "CLIENT", "../x", "a" * 300, "\x1b[2J", "é" * 50, "__consumer_offsets"]
BAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def fill(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """Set some fields of a message to random values, extreme ones included, and return it."""
    for field in message.DESCRIPTOR.fields:
        is_message = field.message_type is not None
        if rng.random() < 0.25 or depth > 4 or (is_message and field.message_type.GetOptions().map_entry):
            continue
        found = getattr(message, field.name)
        if field.is_repeated:
            for _ in range(rng.choice([1, 1, 2, 5])):
                fill(found.add(), rng, depth + 1) if is_message else found.append(value_of(field, rng))
        elif is_message:
            fill(found, rng, depth + 1).SetInParent()
        else:
            setattr(message, field.name, value_of(field, rng))
    return message


def value_of(field: FieldDescriptor, rng: random.Random) -> Any:
    """Return a value for a field that is not a message."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = rng.choice(TEXTS)
        return text.encode() * rng.choice([1, 40]) if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([*field.enum_type.values_by_number, 99])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    bits = 64 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    is_unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    low, high = 0 if is_unsigned else -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return max(low, min(rng.choice(NUMBERS), high))


def mutant(method: MethodDescriptor, rng: random.Random) -> bytes:
    """Return the bytes of a random message, damaged in half of the cases."""
    data = bytearray(fill(message_factory.GetMessageClass(method.input_type)(), rng).SerializeToString())
    for _ in range(rng.choice([0, 0, 0, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice([0, 1, 3])] = rng.randbytes(rng.choice([0, 1, 4]))
    return bytes(data)


def call(channel: Any, method: MethodDescriptor, data: bytes) -> tuple[grpc.StatusCode, str]:
    """Send one mutant; return the status and its details."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    caller = getattr(channel, kind)(f"/{method.containing_service.full_name}/{method.name}")
    try:
        answer = caller(iter([data]) if method.client_streaming else data, timeout=0.3)
        for _ in answer if method.server_streaming else ():
            answer.cancel()
    except grpc.RpcError as failure:
        return failure.code(), failure.details() or ""
    return grpc.StatusCode.OK, ""


def send(cluster: LocalCluster, count: int, seed: int, only: list[str] | None) -> list[str]:
    """Send the mutants and print the statuses by service; return the problems."""
    problems = []
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("rides", 3, 3)])
        active = f"controller-{admin.describe_cluster().controller_id}"
    for role, listener, module in TARGETS:
        (service,) = module.DESCRIPTOR.services_by_name.values()
        if only and service.full_name not in only:
            continue
        node = cluster.nodes[active if role == "controller" else "broker-1"]
        address = re.search(rf"{listener}://([^,\s]+)", " ".join(node.argv))
        assert address is not None
        rng = random.Random(f"{seed} {role} {service.full_name}")
        work = [(one, mutant(one, rng)) for one in rng.choices(service.methods, k=count)]
        with grpc.insecure_channel(address[1]) as channel, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one, to=channel: call(to, *one), work))  # type: ignore[misc]
        print(f"{role} {service.full_name}:", dict(Counter(code.name for code, _ in answers)), flush=True)
        ended = zip(work, answers, strict=True)
        problems += [f"{one.name}: {code} {text}" for (one, _), (code, text) in ended if code in BAD][:5]
    for node in cluster.nodes.values():
        count = node.log_path.read_text(encoding="utf-8", errors="replace").count("Traceback")
        if count or not node.running:
            problems.append(f"{node.name}: running={node.running} tracebacks={count} log={node.log_path}")
    return problems


def main() -> int:
    """Start a cluster, send the mutants, print the problems; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="mutants for each service")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="full name of a service; repeat")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="paceline-mutants-"))
    cluster = LocalCluster(directory, CONFIG_FILE)
    try:
        cluster.start()
        problems = send(cluster, asked.count, asked.seed, asked.only)
    finally:
        cluster.stop()
    print("\n".join(problems) or "no crash, no INTERNAL")
    if not problems:
        remove(directory)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

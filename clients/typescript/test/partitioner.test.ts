import assert from "node:assert/strict";
import { test } from "node:test";
import { partitionForKey } from "paceline";
import { murmur2 } from "../src/partitioner.js";

// The vectors of protos/paceline/v1/record.proto.
const VECTORS: [key: string, hash: number, partitionOf12: number][] = [
  ["", 275646681, 9],
  ["21", -973932308, 0],
  ["foobar", -790332482, 6],
  ["a-little-bit-long-string", -985981536, 8],
  ["a-little-bit-longer-string", -1486304829, 11],
  ["abc", 479470107, 3],
];

for (const [key, hash, partition] of VECTORS) {
  test(`the key ${JSON.stringify(key)} has the hash and partition of every client`, () => {
    assert.equal(murmur2(Buffer.from(key)), hash);
    assert.equal(partitionForKey(key, 12), partition);
  });
}

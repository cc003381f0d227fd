/**
 * Return the partition of a record with a key, the same for the clients of every language:
 * (murmur2(key) & 0x7fffffff) mod partitionCount, with Kafka's murmur2.
 */
export function partitionForKey(key: Uint8Array | string, partitionCount: number): number {
  const bytes = typeof key === "string" ? Buffer.from(key) : key;
  return (murmur2(bytes) & 0x7fffffff) % partitionCount;
}

const MULTIPLIER = 0x5bd1e995;

/** Return Kafka's murmur2 hash of bytes as a signed 32-bit integer. */
export function murmur2(data: Uint8Array): number {
  let hash = 0x9747b28c ^ data.length;
  const wholeWords = data.length & ~3;
  for (let at = 0; at < wholeWords; at += 4) {
    let word = data[at]! | (data[at + 1]! << 8) | (data[at + 2]! << 16) | (data[at + 3]! << 24);
    word = Math.imul(word, MULTIPLIER);
    word ^= word >>> 24;
    hash = Math.imul(hash, MULTIPLIER) ^ Math.imul(word, MULTIPLIER);
  }
  if (wholeWords < data.length) {
    for (let at = wholeWords; at < data.length; at++) {
      hash ^= data[at]! << (8 * (at - wholeWords));
    }
    hash = Math.imul(hash, MULTIPLIER);
  }
  hash = Math.imul(hash ^ (hash >>> 13), MULTIPLIER);
  return hash ^ (hash >>> 15);
}

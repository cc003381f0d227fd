//! The partition of a record with a key, the same for the clients of every language.

/// Returns the partition of a record with this key: `(murmur2(key) & 0x7fffffff) mod partition_count`, with Kafka's
/// murmur2.
///
/// # Panics
///
/// If `partition_count` is not positive.
pub fn partition_for_key(key: &[u8], partition_count: i32) -> i32 {
    assert!(partition_count > 0, "a topic has at least one partition");
    (murmur2(key) & 0x7fff_ffff) as i32 % partition_count
}

fn murmur2(data: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let (words, rest) = data.as_chunks::<4>();
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    for word in words {
        let mixed = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ (mixed ^ (mixed >> 24)).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let number = rest.iter().rev().fold(0, |number, byte| (number << 8) | u32::from(*byte));
        hash = (hash ^ number).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_match_the_vectors_of_the_contract() {
        for (key, hash, partition) in [
            ("", 275_646_681, 9),
            ("21", -973_932_308, 0),
            ("foobar", -790_332_482, 6),
            ("a-little-bit-long-string", -985_981_536, 8),
            ("a-little-bit-longer-string", -1_486_304_829, 11),
            ("abc", 479_470_107, 3),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key:?}");
            assert_eq!(partition_for_key(key.as_bytes(), 12), partition, "{key:?}");
        }
    }
}

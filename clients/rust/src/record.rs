//! Records as programs write and read them.

use bytes::Bytes;

use crate::v1;

/// A record to send. An absent key or value is null, which differs from an empty one.
///
/// ```
/// # use paceline::Record;
/// let record = Record::new("rides").key("bike-7").value("returned").header("trace", "4f2a");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The topic.
    pub topic: String,
    /// The partition. If absent, the producer chooses it: from the key, or per batch for records without a key.
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<Bytes>,
    /// The value.
    pub value: Option<Bytes>,
    /// Headers, in order; names may repeat.
    pub headers: Vec<Header>,
    /// Milliseconds since the Unix epoch. If absent, the time of sending.
    pub timestamp_ms: Option<i64>,
}

/// One header of a record. An absent value is null, which differs from an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name.
    pub key: String,
    /// The value.
    pub value: Option<Bytes>,
}

/// The partition and offset of a written record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
    /// The key; absent is null.
    pub key: Option<Bytes>,
    /// The value; absent is null.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
}

impl Record {
    /// Returns a record with null key and null value.
    pub fn new(topic: impl Into<String>) -> Self {
        Record { topic: topic.into(), ..Record::default() }
    }

    /// Sets the partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(Bytes::from(key.into()));
        self
    }

    /// Sets the value.
    #[must_use]
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = Some(Bytes::from(value.into()));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push(Header { key: key.into(), value: Some(Bytes::from(value.into())) });
        self
    }

    /// Sets the timestamp, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// Returns the approximate size of the record in a batch.
    pub(crate) fn size_bytes(&self) -> usize {
        let optional = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|header| header.key.len() + optional(&header.value) + 8).sum();
        optional(&self.key) + optional(&self.value) + headers + 32
    }

    pub(crate) fn into_v1(self, now_ms: i64) -> v1::Record {
        v1::Record {
            key: self.key,
            value: self.value,
            headers: self.headers.into_iter().map(|Header { key, value }| v1::Header { key, value }).collect(),
            timestamp_ms: Some(self.timestamp_ms.unwrap_or(now_ms)),
            offset: 0,
        }
    }
}

impl ConsumedRecord {
    pub(crate) fn of(topic: &str, partition: i32, record: v1::Record) -> Self {
        ConsumedRecord {
            topic: topic.to_owned(),
            partition,
            offset: record.offset,
            key: record.key,
            value: record.value,
            headers: record.headers.into_iter().map(|v1::Header { key, value }| Header { key, value }).collect(),
            timestamp_ms: record.timestamp_ms.unwrap_or(0),
        }
    }
}

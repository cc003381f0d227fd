#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod client;
mod config;
mod connections;
mod consumer;
mod error;
mod fetch;
mod groups;
mod metadata;
mod partition_writer;
mod partitioner;
mod position;
mod producer;
mod record;
mod retry;
mod watch;

pub use admin::{At, NewTopic};
pub use client::Client;
pub use config::{ClientConfig, TlsFiles};
pub use consumer::{Consumer, ConsumerConfig, Reset, Start, TopicPartition};
pub use error::{CallError, Error, ErrorCode, Result, Truncated};
pub use groups::{Assignor, CommittedOffset, GroupConfig, GroupConsumer, GroupEvent};
pub use partitioner::partition_for_key;
pub use producer::{Delivery, Producer, ProducerConfig};
pub use record::{ConsumedRecord, Header, Placed, Record};
pub use watch::{EventWatch, Watched};

/// Stubs of the public contract, for calls that the library does not wrap.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!("gen/paceline.v1.rs");
}

mod error_options {
    include!("gen/error_options.rs");
}

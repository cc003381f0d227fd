//! Consumer groups: members share the partitions of topics, and the cluster keeps their offsets.
//!
//! Read [`consumer`] first: it polls and starts the joins. [`join`] is the task that joins, [`background`] sends heartbeats
//! between polls, and [`member`] is the state that these three share.

mod assignor;
mod background;
mod config;
mod consumer;
mod coordinator;
mod join;
mod member;
mod offsets;
mod topics;

pub use assignor::Assignor;
pub use config::GroupConfig;
pub use consumer::{GroupConsumer, GroupEvent};
pub use offsets::CommittedOffset;
pub(crate) use topics::shape_of;

//! Settings of a member of a group.

use std::time::Duration;

use crate::consumer::ConsumerConfig;
use crate::error::{Error, Result};
use crate::groups::assignor::Assignor;

/// Settings of a member of a consumer group.
///
/// ```
/// # use paceline::GroupConfig;
/// let config = GroupConfig { instance_id: "worker-1".to_owned(), ..GroupConfig::new("billing") };
/// ```
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Name of the group.
    pub group_id: String,
    /// Id of a static member (KIP-345), unique in the group; empty for a dynamic member. A static member keeps its partitions
    /// when its process restarts within the session timeout.
    pub instance_id: String,
    /// Name of the program; the coordinator uses it as the prefix of the member id.
    pub client_id: String,
    /// The coordinator removes this member when no heartbeat has arrived for this long; 45 s by default.
    pub session_timeout: Duration,
    /// Pause between heartbeats; 3 s by default.
    pub heartbeat_interval: Duration,
    /// The member leaves the group when the program has not polled for this long; 5 minutes by default.
    pub max_poll_interval: Duration,
    /// Interval of automatic commits, which cover the records of earlier polls; 5 s by default. None turns automatic commits
    /// off.
    pub auto_commit: Option<Duration>,
    /// Assignors in order of preference; the members of a group must have one in common. Range by default.
    pub assignors: Vec<Assignor>,
    /// How often the leader of the group looks for new partitions; 5 minutes by default.
    pub metadata_max_age: Duration,
    /// Settings of fetches. `reset` is also the start of a partition for which the group has no committed offset.
    pub consumer: ConsumerConfig,
}

impl GroupConfig {
    /// Returns the default settings of a dynamic member.
    pub fn new(group_id: impl Into<String>) -> Self {
        GroupConfig {
            group_id: group_id.into(),
            instance_id: String::new(),
            client_id: "paceline-rust".to_owned(),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            max_poll_interval: Duration::from_secs(300),
            auto_commit: Some(Duration::from_secs(5)),
            assignors: vec![Assignor::Range],
            metadata_max_age: Duration::from_secs(300),
            consumer: ConsumerConfig::default(),
        }
    }

    /// Returns [`Error::InvalidArgument`] for a missing group id or a setting that is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::InvalidArgument(message));
        if self.group_id.is_empty() {
            return invalid("the group id is empty".to_owned());
        }
        let (heartbeat, session) = (self.heartbeat_interval, self.session_timeout);
        if heartbeat.is_zero() || heartbeat >= session {
            return invalid(format!(
                "the heartbeat interval must be positive and below the session timeout, not {heartbeat:?} and {session:?}"
            ));
        }
        if self.max_poll_interval.is_zero() {
            return invalid("the max_poll_interval must be positive".to_owned());
        }
        for (name, time) in [("session timeout", session), ("max_poll_interval", self.max_poll_interval)] {
            if i32::try_from(time.as_millis()).is_err() {
                return invalid(format!("the {name} of {time:?} is too long"));
            }
        }
        for (index, assignor) in self.assignors.iter().enumerate() {
            if self.assignors[..index].contains(assignor) {
                return invalid(format!("the assignor {} is named twice", assignor.name()));
            }
        }
        if self.assignors.is_empty() {
            return invalid("a group needs an assignor".to_owned());
        }
        Ok(())
    }

    pub(crate) fn is_static(&self) -> bool {
        !self.instance_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut GroupConfig)) -> String {
        let mut config = GroupConfig::new("g");
        change(&mut config);
        config.check().expect_err("bad settings are refused").to_string()
    }

    #[test]
    fn the_default_settings_work() {
        GroupConfig::new("g").check().unwrap();
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        assert!(problem(|config| config.group_id.clear()).contains("group id is empty"));
        assert!(problem(|config| config.heartbeat_interval = config.session_timeout).contains("45s and 45s"));
        assert!(problem(|config| config.heartbeat_interval = Duration::ZERO).contains("positive"));
        assert!(problem(|config| config.max_poll_interval = Duration::ZERO).contains("max_poll_interval"));
        assert!(problem(|config| config.max_poll_interval = Duration::from_secs(1 << 32)).contains("too long"));
        assert!(problem(|config| config.assignors.clear()).contains("needs an assignor"));
        assert!(problem(|config| config.assignors.push(Assignor::Range)).contains("range is named twice"));
    }
}

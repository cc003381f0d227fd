//! The task that joins the group: JoinGroup, the assignment when this member leads, SyncGroup, and the committed offsets.
//! The task outlasts the poll that started it, and a later poll takes its result.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::Client;
use crate::connections::{answer, request};
use crate::consumer::TopicPartition;
use crate::error::{Error, Result};
use crate::groups::assignor::{PartitionCounts, Subscriber};
use crate::groups::config::GroupConfig;
use crate::groups::coordinator::{Coordinator, Stub};
use crate::groups::member::{Member, Refused};
use crate::groups::offsets::{CommittedOffset, fetch_committed, from_v1, to_v1};
use crate::groups::topics::{Shapes, find_topics, shapes_of};
use crate::retry::{PATIENCE, report_wait};
use crate::v1::{self, ConsumerSubscription};

/// Added to the rebalance timeout for the deadline of JoinGroup, because the coordinator waits for other members that long.
const JOIN_GRACE: Duration = Duration::from_secs(30);
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// The state that polls, the joining task and the background tasks share.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) coordinator: Coordinator,
    /// Wakes the poll.
    pub(crate) news: Notify,
    member: Mutex<Member>,
    /// The topics of all members when this member joined as the leader; empty when another member leads.
    assigned_by: Mutex<Shapes>,
    /// The subscription whose topics existed before the first join.
    found: Mutex<BTreeSet<String>>,
}

/// The partitions of a member in a new generation.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) partitions: Vec<TopicPartition>,
    pub(crate) committed: HashMap<TopicPartition, CommittedOffset>,
    /// The subscribed topics in the JoinGroup request.
    pub(crate) topics: BTreeSet<String>,
}

impl Group {
    pub(crate) fn new(client: Client, config: GroupConfig) -> Self {
        Group {
            coordinator: Coordinator::new(client, config.group_id.clone()),
            config,
            news: Notify::new(),
            member: Mutex::new(Member::new(Instant::now())),
            assigned_by: Mutex::default(),
            found: Mutex::default(),
        }
    }

    pub(crate) fn member<T>(&self, with: impl FnOnce(&mut Member) -> T) -> T {
        with(&mut self.member.lock().unwrap())
    }

    /// Makes the next poll join the group again.
    pub(crate) fn rejoin(&self) {
        self.member(Member::rejoin);
        self.news.notify_one();
    }

    /// Returns the topics of all members when this member joined as the leader; empty when another member leads.
    pub(crate) fn assigned_by(&self) -> Shapes {
        self.assigned_by.lock().unwrap().clone()
    }

    /// Fails, before the first join of a subscription, when one of its topics does not exist.
    async fn find(&self, topics: &BTreeSet<String>) -> Result<()> {
        if *self.found.lock().unwrap() != *topics {
            let operation = format!("joining group {}", self.config.group_id);
            find_topics(self.coordinator.client(), &operation, topics).await?;
            self.found.lock().unwrap().clone_from(topics);
        }
        Ok(())
    }

    /// Ends the membership and sends LeaveGroup.
    pub(crate) async fn leave(&self, limit: Duration) -> Result<()> {
        let member_id = self.member(Member::leave);
        self.leave_as(member_id, limit).await
    }

    /// Sends LeaveGroup for a dynamic member. A static member stays in the group until its session timeout.
    pub(crate) async fn leave_as(&self, member_id: String, limit: Duration) -> Result<()> {
        if member_id.is_empty() || self.config.is_static() {
            return Ok(());
        }
        let operation = format!("leaving group {}", self.config.group_id);
        let members = vec![v1::LeavingMember { member_id, ..Default::default() }];
        let message = v1::LeaveGroupRequest { group_id: self.config.group_id.clone(), members };
        let call = |mut stub: Stub, limit: Duration| {
            let operation = operation.clone();
            async move { answer(&operation, limit, stub.leave_group(request(message, limit))).await }
        };
        let left = self.coordinator.call(limit, call).await?.members.into_iter().next();
        left.and_then(|member| member.error).map_or(Ok(()), |error| Err(Error::of_group(&operation, error)))
    }
}

/// Joins the group, with retries, until the member has its partitions. Returns the last error when attempts have failed for
/// the timeout of the client, or when the error is not retriable.
pub(crate) async fn join(group: Arc<Group>, topics: BTreeSet<String>) -> Result<Joined> {
    let outcome = match group.find(&topics).await {
        Ok(()) => assigned_partitions(&group, &topics).await,
        Err(failure) => Err(failure),
    };
    if outcome.is_err() {
        group.member(|member| {
            member.join_ended();
            member.rejoin();
        });
    }
    let partitions = outcome?;
    let committed = fetch_committed(&group.coordinator, &group.config.group_id, &partitions).await;
    Ok(Joined { committed: committed.inspect_err(|_| group.rejoin())?, partitions, topics })
}

async fn assigned_partitions(group: &Group, topics: &BTreeSet<String>) -> Result<Vec<TopicPartition>> {
    let mut retry = group.coordinator.client().retry();
    loop {
        if let Some(failure) = group.member(|member| member.fatal()) {
            // Do not join again: that would fence the process that has taken over the instance id.
            return Err(failure);
        }
        let outcome = match join_group(group, topics).await {
            Ok(joined) => {
                // Restart the timeout: the wait for the other members does not count.
                retry = group.coordinator.client().retry();
                sync_group(group, joined).await
            }
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(partitions) => return Ok(partitions),
            Err(failure) => match group.member(|member| member.join_refused(failure)) {
                Refused::JoinNow => {}
                Refused::JoinLater(failure) => retry.after_any(failure).await?,
                Refused::Fail(failure) => return Err(failure),
            },
        }
    }
}

async fn join_group(group: &Group, topics: &BTreeSet<String>) -> Result<v1::JoinGroupResponse> {
    let config = &group.config;
    let operation = format!("joining group {}", config.group_id);
    let subscription = ConsumerSubscription { topics: topics.iter().cloned().collect(), ..Default::default() };
    let protocols = config.assignors.iter().map(|assignor| v1::GroupProtocol {
        name: assignor.name().to_owned(),
        subscription: Some(subscription.clone()),
    });
    let message = v1::JoinGroupRequest {
        group_id: config.group_id.clone(),
        session_timeout_ms: milliseconds(config.session_timeout),
        rebalance_timeout_ms: milliseconds(config.max_poll_interval),
        member_id: group.member(|member| member.id().to_owned()),
        group_instance_id: config.instance_id.clone(),
        protocol_type: String::new(),
        protocols: protocols.collect(),
        client_id: config.client_id.clone(),
    };
    let call = |mut stub: Stub, limit: Duration| {
        let operation = operation.clone();
        group.member(Member::join_sent);
        async move { answer(&operation, limit, stub.join_group(request(message, limit))).await }
    };
    let joining = group.coordinator.call(config.max_poll_interval + JOIN_GRACE, call);
    let joined = reported(&format!("{operation}: waiting for its members"), joining).await?;
    group.member(|member| member.joined(&joined.member_id, joined.generation_id));
    Ok(joined)
}

async fn sync_group(group: &Group, joined: v1::JoinGroupResponse) -> Result<Vec<TopicPartition>> {
    let operation = format!("getting the partitions of group {}", group.config.group_id);
    let mut assignments = Vec::new();
    let mut shapes = Shapes::new();
    if joined.leader == joined.member_id {
        // A static leader that rejoins assigns nothing, but no other member looks for new partitions (KIP-814).
        shapes = shapes_of_members(group, &joined).await?;
        if !joined.skip_assignment {
            assignments = assign(group, &operation, &joined, &shapes)?;
        }
    }
    *group.assigned_by.lock().unwrap() = shapes;
    let message = v1::SyncGroupRequest {
        group_id: group.config.group_id.clone(),
        generation_id: joined.generation_id,
        member_id: joined.member_id,
        group_instance_id: group.config.instance_id.clone(),
        protocol_type: joined.protocol_type,
        protocol_name: joined.protocol_name,
        assignments,
    };
    let call = |mut stub: Stub, limit: Duration| {
        let operation = operation.clone();
        async move { answer(&operation, limit, stub.sync_group(request(message, limit))).await }
    };
    let syncing = group.coordinator.call(SYNC_TIMEOUT, call);
    let found = reported(&format!("{operation}: waiting for the assignment of the leader"), syncing).await?;
    group.member(Member::synced);
    Ok(from_v1(found.assignment.unwrap_or_default().partitions))
}

/// Returns the topics of all members, with the partition count 0 for topics that do not exist.
async fn shapes_of_members(group: &Group, joined: &v1::JoinGroupResponse) -> Result<Shapes> {
    let subscriptions = joined.members.iter().filter_map(|member| member.subscription.as_ref());
    let topics: BTreeSet<String> = subscriptions.flat_map(|subscription| subscription.topics.iter().cloned()).collect();
    let client = group.coordinator.client();
    let mut shapes = shapes_of(client, &topics, client.request_timeout()).await?;
    for topic in topics {
        shapes.entry(topic).or_default();
    }
    Ok(shapes)
}

/// Assigns the partitions of the topics to the members that subscribe to them.
fn assign(
    group: &Group,
    operation: &str,
    joined: &v1::JoinGroupResponse,
    shapes: &Shapes,
) -> Result<Vec<v1::MemberAssignment>> {
    let named = group.config.assignors.iter().find(|assignor| assignor.name() == joined.protocol_name);
    let unknown = || Error::bad_answer(operation, &format!("the assignor {:?} is not ours", joined.protocol_name));
    let assignor = named.ok_or_else(unknown)?;
    let members: Vec<Subscriber> = joined.members.iter().map(subscriber).collect();
    let counts: PartitionCounts = shapes.iter().map(|(topic, shape)| (topic.clone(), shape.count)).collect();
    let assignments = assignor.assign(&members, &counts).into_iter().map(|(member_id, partitions)| {
        let assignment = v1::ConsumerAssignment { partitions: to_v1(&partitions), ..Default::default() };
        v1::MemberAssignment { member_id, assignment: Some(assignment) }
    });
    Ok(assignments.collect())
}

fn subscriber(member: &v1::JoinGroupMember) -> Subscriber {
    let subscription = member.subscription.as_ref();
    Subscriber {
        member_id: member.member_id.clone(),
        instance_id: member.group_instance_id.clone(),
        topics: subscription.map(|subscription| subscription.topics.iter().cloned().collect()).unwrap_or_default(),
    }
}

/// Awaits a call, and reports the wait if the call has not ended after `PATIENCE`.
async fn reported<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::pin!(call);
    match tokio::time::timeout(PATIENCE, &mut call).await {
        Ok(done) => done,
        Err(_) => {
            report_wait(what);
            call.await
        }
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientConfig, ErrorCode};

    #[tokio::test]
    async fn a_leader_that_keeps_the_assignment_looks_at_the_topics_too() {
        let config = ClientConfig::new(["127.0.0.1:1"]).timeout(Duration::from_millis(300));
        let group = Group::new(Client::new(config).unwrap(), GroupConfig::new("g"));
        let subscription = Some(ConsumerSubscription { topics: vec!["t".to_owned()], ..Default::default() });
        let members = vec![v1::JoinGroupMember { member_id: "m".to_owned(), subscription, ..Default::default() }];
        let (leader, member_id) = ("m".to_owned(), "m".to_owned());
        let joined = v1::JoinGroupResponse { leader, member_id, members, skip_assignment: true, ..Default::default() };
        let failure = sync_group(&group, joined).await.unwrap_err();
        assert!(failure.to_string().starts_with("describing topics"), "no broker was asked for the topics: {failure}");
    }

    #[tokio::test]
    async fn a_member_that_was_fenced_while_it_joined_does_not_join_again() {
        let config = ClientConfig::new(["127.0.0.1:1"]).timeout(Duration::from_millis(300));
        let group = Group::new(Client::new(config).unwrap(), GroupConfig::new("g"));
        group.member(|member| {
            member.joined("m", 3);
            member.heartbeat_refused(3, &Error::new("heartbeat", ErrorCode::FencedInstanceId, "no"))
        });
        let failure = assigned_partitions(&group, &BTreeSet::new()).await.unwrap_err();
        assert_eq!(failure.code(), Some(ErrorCode::FencedInstanceId));
    }
}

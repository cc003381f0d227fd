//! Background tasks of a group member: heartbeats, and the leader's check for changed partition counts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::connections::{answer, request};
use crate::error::Result;
use crate::groups::coordinator::Stub;
use crate::groups::join::Group;
use crate::groups::topics::{have_changed, shapes_of};
use crate::v1;

const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Interval of the leader's checks while a subscribed topic does not exist.
const MISSING_TOPIC_PAUSE: Duration = Duration::from_secs(1);

/// Sends heartbeats while the member is in a generation, and leaves the group when the program stops polling.
pub(crate) async fn beat(group: Arc<Group>) {
    let config = &group.config;
    let mut pause = config.heartbeat_interval;
    loop {
        sleep(pause).await;
        pause = config.heartbeat_interval;
        let Some(generation) = group.member(|member| member.beating()) else { continue };
        if let Some(member_id) = group.member(|member| member.leave_when_idle(Instant::now(), config.max_poll_interval))
        {
            leave_idle(&group, member_id).await;
            continue;
        }
        if let Err(failure) = heartbeat(&group, generation).await {
            let is_settled = group.member(|member| member.heartbeat_refused(generation, &failure));
            group.news.notify_one();
            if !is_settled {
                tracing::debug!(group = config.group_id, error = %failure, "heartbeat failed");
                pause = RETRY_PAUSE.min(pause);
            }
        }
    }
}

async fn leave_idle(group: &Group, member_id: String) {
    tracing::warn!(
        group = group.config.group_id,
        max_poll_interval = ?group.config.max_poll_interval,
        "leaving the group because the program does not poll; poll more often, take fewer records per poll or raise max_poll_interval"
    );
    group.news.notify_one();
    if let Err(failure) = group.leave_as(member_id, group.config.session_timeout / 2).await {
        tracing::info!(error = %failure, "leaving the group failed");
    }
}

async fn heartbeat(group: &Group, generation: i32) -> Result<()> {
    let config = &group.config;
    let operation = format!("heartbeat of group {}", config.group_id);
    let message = v1::HeartbeatRequest {
        group_id: config.group_id.clone(),
        generation_id: generation,
        member_id: group.member(|member| member.id().to_owned()),
        group_instance_id: config.instance_id.clone(),
    };
    let limit = (config.session_timeout / 3).min(config.heartbeat_interval * 2).max(Duration::from_millis(500));
    let call = |mut stub: Stub, limit: Duration| async move {
        answer(&operation, limit, stub.heartbeat(request(message, limit))).await
    };
    group.coordinator.call(limit, call).await.map(|_| ())
}

/// Starts a rebalance when the partitions of topics have changed since this member joined as the leader.
pub(crate) async fn watch_topics(group: Arc<Group>) {
    loop {
        let assigned_by = group.assigned_by();
        let has_missing = assigned_by.values().any(|shape| shape.count == 0);
        let longest = group.config.metadata_max_age;
        sleep(if has_missing { MISSING_TOPIC_PAUSE.min(longest) } else { longest }).await;
        let assigned_by = group.assigned_by();
        if assigned_by.is_empty() {
            continue;
        }
        let topics = assigned_by.keys().cloned().collect();
        let client = group.coordinator.client();
        let Ok(now) = shapes_of(client, &topics, client.request_timeout()).await else { continue };
        if have_changed(&assigned_by, &now) && group.assigned_by() == assigned_by {
            tracing::info!(group = group.config.group_id, "joining again because partition counts have changed");
            group.rejoin();
        }
    }
}

//! The state of a membership, which polls, the join task and the heartbeat task share. Pure: makes no calls, and receives
//! the time as an argument.
//!
//! `JoinGroup` gives a member its generation. The member joins again when the group rebalances. After the membership was
//! lost, other members may own the partitions.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::v1::ErrorCode;

#[derive(Debug)]
pub(crate) struct Member {
    id: String,
    generation: Option<i32>,
    /// Whether a JoinGroup is in flight; the coordinator expects no heartbeats until its answer.
    is_joining: bool,
    needs_join: bool,
    is_lost: bool,
    fatal: Option<Error>,
    is_polling: bool,
    last_poll: Instant,
}

/// The reaction to a refused JoinGroup or SyncGroup.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Join again at once.
    JoinNow,
    /// Join again after a pause.
    JoinLater(Error),
    /// Report the failure to the program.
    Fail(Error),
}

impl Member {
    pub(crate) fn new(now: Instant) -> Self {
        Member {
            id: String::new(),
            generation: None,
            is_joining: false,
            needs_join: true,
            is_lost: false,
            fatal: None,
            is_polling: false,
            last_poll: now,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn generation(&self) -> Option<i32> {
        self.generation
    }

    pub(crate) fn needs_join(&self) -> bool {
        self.needs_join
    }

    /// Returns the error after which this member cannot join again: another process has taken over its instance id.
    pub(crate) fn fatal(&self) -> Option<Error> {
        self.fatal.clone()
    }

    /// Returns the generation while the coordinator expects heartbeats, else None.
    pub(crate) fn beating(&self) -> Option<i32> {
        self.generation.filter(|_| !self.is_joining)
    }

    pub(crate) fn set_polling(&mut self, is_polling: bool, now: Instant) {
        (self.is_polling, self.last_poll) = (is_polling, now);
    }

    /// Returns the time since the last poll ended; zero during a poll.
    pub(crate) fn idle(&self, now: Instant) -> Duration {
        if self.is_polling { Duration::ZERO } else { now.saturating_duration_since(self.last_poll) }
    }

    pub(crate) fn rejoin(&mut self) {
        self.needs_join = true;
    }

    /// Records that the membership was lost. The next poll reports the lost partitions and joins again.
    pub(crate) fn lose(&mut self) {
        self.generation = None;
        (self.is_lost, self.needs_join) = (true, true);
    }

    /// Returns whether the membership was lost since the last call.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    /// Ends the membership and returns its member id, for LeaveGroup.
    pub(crate) fn leave(&mut self) -> String {
        self.generation = None;
        self.needs_join = true;
        std::mem::take(&mut self.id)
    }

    /// Ends the membership as lost if the program has not polled for longer than `limit`, and returns its member id, for
    /// LeaveGroup. The next poll joins with a new member id, also before LeaveGroup is answered.
    pub(crate) fn leave_when_idle(&mut self, now: Instant, limit: Duration) -> Option<String> {
        if self.idle(now) <= limit {
            return None;
        }
        self.lose();
        Some(self.leave())
    }

    pub(crate) fn join_sent(&mut self) {
        self.is_joining = true;
    }

    pub(crate) fn join_ended(&mut self) {
        self.is_joining = false;
    }

    pub(crate) fn joined(&mut self, id: &str, generation: i32) {
        self.is_joining = false;
        id.clone_into(&mut self.id);
        self.generation = Some(generation);
    }

    /// Records the answer of SyncGroup, which ends the rebalance. A membership that was lost meanwhile must join again.
    pub(crate) fn synced(&mut self) {
        self.needs_join = self.is_lost;
    }

    /// Records a refused JoinGroup or SyncGroup and returns the reaction.
    pub(crate) fn join_refused(&mut self, failure: Error) -> Refused {
        self.is_joining = false;
        let Some(call) = failure.call() else { return Refused::Fail(failure) };
        match call.code {
            ErrorCode::MemberIdRequired => match &call.member_id {
                Some(id) if !id.is_empty() => {
                    id.clone_into(&mut self.id);
                    Refused::JoinNow
                }
                _ => Refused::Fail(failure),
            },
            ErrorCode::UnknownMemberId => {
                self.id.clear();
                self.generation = None;
                Refused::JoinLater(failure)
            }
            ErrorCode::IllegalGeneration => {
                self.generation = None;
                Refused::JoinLater(failure)
            }
            ErrorCode::RebalanceInProgress => Refused::JoinLater(failure),
            ErrorCode::FencedInstanceId => {
                self.fatal = Some(failure.clone());
                Refused::Fail(failure)
            }
            _ if call.retriable => Refused::JoinLater(failure),
            _ => Refused::Fail(failure),
        }
    }

    /// Records a failed heartbeat. Returns false if the failure says nothing about the membership, so that the heartbeat must
    /// be repeated soon.
    pub(crate) fn heartbeat_refused(&mut self, generation: i32, failure: &Error) -> bool {
        if self.generation != Some(generation) {
            // The failed heartbeat belongs to an earlier generation.
            return true;
        }
        match failure.code() {
            Some(ErrorCode::RebalanceInProgress) => self.rejoin(),
            Some(ErrorCode::IllegalGeneration) => self.lose(),
            Some(ErrorCode::UnknownMemberId) => {
                self.lose();
                self.id.clear();
            }
            Some(ErrorCode::FencedInstanceId) => {
                self.lose();
                self.fatal = Some(failure.clone());
            }
            _ => return false,
        }
        true
    }

    /// Returns the generation and the member id for a commit.
    ///
    /// # Errors
    ///
    /// [`Error::CommitFailed`] without a generation. The coordinator would take such a commit for that of a caller outside of
    /// the group, and an earlier owner of a partition could overwrite the offset that the present owner has committed.
    pub(crate) fn for_commit(&self, group_id: &str) -> Result<(i32, String)> {
        let cause = if self.id.is_empty() { "it has no member id" } else { "it is in no generation" };
        let none = || Error::CommitFailed { group_id: group_id.to_owned(), cause: cause.to_owned(), definite: true };
        Ok((self.generation.ok_or_else(none)?, self.id.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: ErrorCode) -> Error {
        Error::new("testing", code, "no")
    }

    fn joined() -> Member {
        let mut member = Member::new(Instant::now());
        member.join_sent();
        member.joined("m", 3);
        member.synced();
        member
    }

    #[test]
    fn a_new_member_joins_with_the_id_that_the_coordinator_gives() {
        let mut member = Member::new(Instant::now());
        assert!(member.needs_join());
        let mut required = failure(ErrorCode::MemberIdRequired);
        required.call_mut().unwrap().member_id = Some("given".to_owned());
        member.join_sent();
        assert!(matches!(member.join_refused(required), Refused::JoinNow));
        assert_eq!(member.id(), "given");
        assert!(matches!(member.join_refused(failure(ErrorCode::MemberIdRequired)), Refused::Fail(_)));
    }

    #[test]
    fn heartbeats_are_due_from_the_answer_of_join_group_on() {
        let mut member = Member::new(Instant::now());
        member.join_sent();
        assert_eq!(member.beating(), None);
        member.joined("m", 1);
        assert_eq!(member.beating(), Some(1));
        member.join_sent();
        assert_eq!(member.beating(), None, "the member takes part in the next rebalance");
        member.join_ended();
        assert_eq!(member.beating(), Some(1));
    }

    #[test]
    fn a_rebalance_makes_the_member_join_again_and_keeps_its_partitions_until_then() {
        let mut member = joined();
        assert!(!member.needs_join());
        assert!(member.heartbeat_refused(3, &failure(ErrorCode::RebalanceInProgress)));
        assert!(member.needs_join() && !member.take_lost());
        assert_eq!((member.id(), member.generation()), ("m", Some(3)));
    }

    #[test]
    fn a_membership_that_was_lost_is_reported_once_and_keeps_the_id_only_after_an_illegal_generation() {
        for (code, id) in [(ErrorCode::IllegalGeneration, "m"), (ErrorCode::UnknownMemberId, "")] {
            let mut member = joined();
            assert!(member.heartbeat_refused(3, &failure(code)));
            assert_eq!((member.id(), member.generation()), (id, None));
            assert!(member.needs_join() && member.take_lost() && !member.take_lost());
            assert!(member.fatal().is_none());
        }
    }

    #[test]
    fn a_refusal_of_an_earlier_generation_changes_nothing() {
        let mut member = joined();
        assert!(member.heartbeat_refused(2, &failure(ErrorCode::UnknownMemberId)));
        assert_eq!((member.id(), member.generation(), member.needs_join()), ("m", Some(3), false));
    }

    #[test]
    fn a_heartbeat_without_an_answer_is_sent_again() {
        let mut member = joined();
        assert!(!member.heartbeat_refused(3, &failure(ErrorCode::NotCoordinator)));
        assert_eq!(member.beating(), Some(3));
    }

    #[test]
    fn a_fenced_member_never_joins_again() {
        let mut member = joined();
        assert!(member.heartbeat_refused(3, &failure(ErrorCode::FencedInstanceId)));
        assert_eq!(member.fatal().unwrap().code(), Some(ErrorCode::FencedInstanceId));
        let mut member = joined();
        assert!(matches!(member.join_refused(failure(ErrorCode::FencedInstanceId)), Refused::Fail(_)));
        assert!(member.fatal().is_some());
    }

    #[test]
    fn refused_joins_are_repeated_unless_another_try_cannot_help() {
        for code in [ErrorCode::RebalanceInProgress, ErrorCode::IllegalGeneration, ErrorCode::NotCoordinator] {
            let mut member = joined();
            assert!(matches!(member.join_refused(failure(code)), Refused::JoinLater(_)), "{}", code.name());
            assert_eq!(member.id(), "m");
        }
        let mut member = joined();
        assert!(matches!(member.join_refused(failure(ErrorCode::UnknownMemberId)), Refused::JoinLater(_)));
        assert_eq!(member.id(), "");
        for code in [
            ErrorCode::InconsistentGroupProtocol,
            ErrorCode::GroupMaxSizeReached,
            ErrorCode::InvalidSessionTimeout,
            ErrorCode::InvalidGroupId,
            ErrorCode::InvalidRequest,
        ] {
            assert!(matches!(joined().join_refused(failure(code)), Refused::Fail(_)), "{}", code.name());
        }
    }

    #[test]
    fn a_membership_that_is_lost_while_it_syncs_is_joined_again() {
        let mut member = joined();
        member.lose();
        member.synced();
        assert!(member.needs_join());
    }

    #[test]
    fn a_program_that_polls_again_while_its_member_leaves_keeps_the_new_membership() {
        let begin = Instant::now();
        let limit = Duration::from_secs(10);
        let mut member = joined();
        member.set_polling(false, begin);
        assert_eq!(member.leave_when_idle(begin + limit, limit), None);
        assert_eq!(member.generation(), Some(3));
        // The coordinator has not answered LeaveGroup when the program polls, and joins again.
        assert_eq!(member.leave_when_idle(begin + limit * 2, limit).as_deref(), Some("m"));
        assert_eq!((member.id(), member.generation(), member.needs_join()), ("", None, true));
        assert!(member.take_lost(), "the partitions are lost, not revoked");
        member.join_sent();
        member.joined("other", 4);
        member.synced();
        assert_eq!((member.id(), member.generation(), member.needs_join()), ("other", Some(4), false));
    }

    #[test]
    fn a_program_that_polls_is_never_idle() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(10);
        let mut member = Member::new(begin);
        assert_eq!(member.idle(later), Duration::from_secs(10));
        member.set_polling(true, begin);
        assert_eq!(member.idle(later), Duration::ZERO);
        member.set_polling(false, begin);
        assert_eq!(member.idle(later), Duration::from_secs(10));
    }

    #[test]
    fn commits_without_a_generation_are_refused() {
        let mut member = joined();
        assert_eq!(member.for_commit("g").unwrap(), (3, "m".to_owned()));
        member.lose();
        assert!(member.for_commit("g").unwrap_err().to_string().contains("no generation"));
        assert_eq!(member.leave(), "m");
        let failure = member.for_commit("g").unwrap_err();
        assert!(failure.to_string().contains("no member id"), "{failure}");
        assert_eq!(failure.code(), Some(ErrorCode::IllegalGeneration));
        assert!(failure.is_definite() && !failure.is_retriable());
    }
}

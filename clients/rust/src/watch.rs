//! A stream of cluster events that continues after broken connections.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::Streaming;

use crate::client::Client;
use crate::connections::LARGEST_MESSAGE;
use crate::error::{Error, Result};
use crate::retry::Retry;
use crate::v1::metadata_service_client::MetadataServiceClient;
use crate::v1::{self, ClusterEvent, ErrorCode, EventGap};

const OPERATION: &str = "watching events";
/// Time without a message after which the stream is opened again; a server sends a message every ten seconds.
const SILENCE: Duration = Duration::from_secs(25);

/// An item of an [`EventWatch`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Watched {
    /// An event: an election, a change of an ISR, a broker that comes or goes, ...
    Event(Box<ClusterEvent>),
    /// Events between the last item and the next event are missing.
    Gap(EventGap),
}

/// A stream of cluster events, made by [`Client::watch_events`].
#[derive(Debug)]
pub struct EventWatch {
    client: Client,
    cursor: String,
    /// Time at which the watch was created.
    begin_ms: i64,
    /// Time from which another controller continues: that of the last event, or of the creation of the watch. None before the
    /// first message.
    since_ms: Option<i64>,
    stream: Option<Streaming<v1::WatchEventsResponse>>,
    /// Whether the stream has received a message.
    heard: bool,
    waiting: VecDeque<Watched>,
}

impl Client {
    /// Returns a watch of the active controller's events. The events begin with the first call of [`EventWatch::next`], which
    /// opens the stream.
    pub fn watch_events(&self) -> EventWatch {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EventWatch {
            client: self.clone(),
            cursor: String::new(),
            begin_ms: i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX),
            since_ms: None,
            stream: None,
            heard: false,
            waiting: VecDeque::new(),
        }
    }
}

impl EventWatch {
    /// Waits for the next event. When the connection breaks or another controller takes over, it connects again and
    /// continues after the last event.
    ///
    /// Dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// The last failure, when no controller was reached within the timeout of the client. The next call tries again.
    pub async fn next(&mut self) -> Result<Watched> {
        let mut retry = self.client.retry();
        loop {
            if let Some(watched) = self.waiting.pop_front() {
                return Ok(watched);
            }
            match self.receive(retry.attempt_limit()).await {
                Ok(batch) => {
                    retry = self.client.retry();
                    self.take(batch);
                }
                Err(failure) => {
                    self.stream = None;
                    retry = self.after_stream(retry);
                    retry.after(failure).await?;
                }
            }
        }
    }

    fn take(&mut self, batch: v1::EventBatch) {
        self.heard = true;
        // Without a time, another controller would send all events that it retains.
        let begin_ms = self.since_ms.or(Some(self.begin_ms));
        self.since_ms = begin_ms.max(batch.events.iter().map(|event| event.time_ms).max());
        self.cursor = batch.cursor;
        self.waiting.extend(batch.gap.map(Watched::Gap));
        self.waiting.extend(batch.events.into_iter().map(|event| Watched::Event(Box::new(event))));
    }

    /// Returns the retry to continue with after a stream has ended: a new retry, with the full timeout, if the stream had
    /// received a message.
    fn after_stream(&mut self, retry: Retry) -> Retry {
        if std::mem::take(&mut self.heard) { self.client.retry() } else { retry }
    }

    async fn receive(&mut self, limit: Duration) -> Result<v1::EventBatch> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(open(&self.client, &self.cursor, self.since_ms, limit).await?),
        };
        let message = tokio::time::timeout(SILENCE, stream.message()).await;
        match message.map_err(|_| Error::timed_out(OPERATION, SILENCE))? {
            Ok(Some(response)) => Ok(response.batch.unwrap_or_default()),
            Ok(None) => Err(Error::new(OPERATION, ErrorCode::BrokerNotAvailable, "the server ended the stream")),
            Err(status) => Err(Error::of_status(OPERATION, status)),
        }
    }
}

async fn open(
    client: &Client,
    cursor: &str,
    since_ms: Option<i64>,
    limit: Duration,
) -> Result<Streaming<v1::WatchEventsResponse>> {
    let address = client.find_controller(OPERATION, limit).await?;
    let message = v1::WatchEventsRequest {
        cursor: cursor.to_owned(),
        since_ms,
        active_controller_only: true,
        ..Default::default()
    };
    let mut stub = MetadataServiceClient::new(client.channel(&address)?).max_decoding_message_size(LARGEST_MESSAGE);
    let opened = tokio::time::timeout(limit, stub.watch_events(message)).await;
    match opened.map_err(|_| Error::timed_out(OPERATION, limit))? {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => {
            let failure = Error::of_status(OPERATION, status);
            client.note_failure(&address, &failure);
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;

    #[tokio::test]
    async fn another_controller_sends_no_events_from_before_the_watch() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let mut watch = client.watch_events();
        assert_eq!(watch.since_ms, None);
        watch.take(v1::EventBatch { cursor: "c1".to_owned(), ..Default::default() });
        assert_eq!((watch.since_ms, watch.cursor.as_str()), (Some(watch.begin_ms), "c1"));
        let later = v1::ClusterEvent { time_ms: watch.begin_ms + 5, ..Default::default() };
        watch.take(v1::EventBatch { events: vec![later], ..Default::default() });
        watch.take(v1::EventBatch::default());
        assert_eq!(watch.since_ms, Some(watch.begin_ms + 5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_on_a_stream_that_has_had_a_message_is_no_time_without_a_controller() {
        let timeout = Duration::from_secs(5);
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"]).timeout(timeout)).unwrap();
        for (heard, left) in [(true, timeout), (false, Duration::ZERO)] {
            let mut watch = client.watch_events();
            let retry = client.retry();
            watch.heard = heard;
            tokio::time::advance(SILENCE).await;
            assert_eq!(watch.after_stream(retry).remaining(), left);
            assert!(!watch.heard);
        }
    }
}

//! The topics of a group: which exist, and how many partitions they have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::client::Client;
use crate::connections::{LARGEST_MESSAGE, answer, request};
use crate::error::{Error, Result};
use crate::retry::{Backoff, MISSING_LIMIT};
use crate::v1::metadata_service_client::MetadataServiceClient;
use crate::v1::{self, ErrorCode};

const OPERATION: &str = "describing topics";
/// How many brokers are asked: one that is cut off from the cluster knows neither new topics nor added partitions.
const DESCRIBERS: usize = 3;

/// A topic as brokers describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) id: String,
    /// 0 for a topic that does not exist.
    pub(crate) count: i32,
}

/// Topics by name.
pub(crate) type Shapes = BTreeMap<String, Shape>;

/// What one process answers.
#[derive(Debug, Default)]
struct Described {
    shapes: Shapes,
    /// The error of a topic that cannot be described for good, as one with an invalid name.
    refusal: Option<Error>,
}

/// Asks several brokers for a topic. Returns None if the topic does not exist.
pub(crate) async fn shape_of(client: &Client, topic: &str, limit: Duration) -> Result<Option<Shape>> {
    Ok(shapes_of(client, &BTreeSet::from([topic.to_owned()]), limit).await?.remove(topic))
}

/// Returns the topics that exist. Several brokers are asked.
pub(crate) async fn shapes_of(client: &Client, topics: &BTreeSet<String>, limit: Duration) -> Result<Shapes> {
    Ok(describe(client, topics, limit).await?.shapes)
}

/// Returns when all topics exist.
///
/// # Errors
///
/// `UNKNOWN_TOPIC_OR_PARTITION` when brokers have not known a topic for some seconds, and the error of a topic that cannot be
/// described for good. Where no broker answers nothing is known against the topics.
pub(crate) async fn find_topics(client: &Client, operation: &str, topics: &BTreeSet<String>) -> Result<()> {
    let begin = Instant::now();
    let mut backoff = Backoff::new();
    loop {
        let described = match describe(client, topics, client.request_timeout()).await {
            Err(failure) if failure.is_retriable() => return Ok(()),
            outcome => outcome?,
        };
        if let Some(refusal) = described.refusal {
            return Err(refusal);
        }
        let Some(unknown) = topics.iter().find(|topic| !described.shapes.contains_key(*topic)) else { return Ok(()) };
        if begin.elapsed() >= MISSING_LIMIT {
            return Err(Error::missing(operation, format!("topic {unknown} does not exist")));
        }
        sleep(backoff.next(fastrand::f64())).await;
    }
}

/// Returns whether topics have other partitions than those that were assigned. An answer with fewer partitions of the same
/// topic is outdated.
pub(crate) fn have_changed(assigned: &Shapes, now: &Shapes) -> bool {
    assigned.iter().any(|(topic, before)| match now.get(topic) {
        None => before.count != 0,
        Some(found) => found.count > before.count || (found.id != before.id && found.count != before.count),
    })
}

async fn describe(client: &Client, topics: &BTreeSet<String>, limit: Duration) -> Result<Described> {
    if topics.is_empty() {
        return Ok(Described::default());
    }
    let ask = async |channel, limit| describe_at(channel, topics, limit).await;
    let mut merged = merged(client.ask_some(limit, DESCRIBERS, ask).await?);
    for (topic, shape) in &mut merged.shapes {
        if let Some(known) = client.metadata(|metadata| metadata.count_of(topic, &shape.id)) {
            shape.count = shape.count.max(known);
        }
    }
    Ok(merged)
}

/// Merges answers. A topic never gets fewer partitions, so the largest count is the present one. A topic that was created
/// again has the id that most of the processes name.
fn merged(answers: Vec<Described>) -> Described {
    let mut merged = Described::default();
    let mut by_topic: BTreeMap<String, Vec<Shape>> = BTreeMap::new();
    for described in answers {
        merged.refusal = merged.refusal.or(described.refusal);
        for (topic, shape) in described.shapes {
            by_topic.entry(topic).or_default().push(shape);
        }
    }
    for (topic, shapes) in by_topic {
        let votes = |shape: &Shape| shapes.iter().filter(|other| other.id == shape.id).count();
        // The last of equals wins in max_by_key, the first in the list is wanted.
        let Some(best) = shapes.iter().rev().max_by_key(|shape| votes(shape)) else { continue };
        let count = shapes.iter().filter(|shape| shape.id == best.id).map(|shape| shape.count).max().unwrap_or(0);
        merged.shapes.insert(topic, Shape { id: best.id.clone(), count });
    }
    merged
}

/// Reads all pages of the answer.
async fn describe_at(channel: Channel, topics: &BTreeSet<String>, limit: Duration) -> Result<Described> {
    let mut stub = MetadataServiceClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE);
    let deadline = Instant::now() + limit;
    let cluster = stub.describe_cluster(request(v1::DescribeClusterRequest {}, limit));
    if answer(OPERATION, limit, cluster).await?.brokers.is_empty() {
        // It would call every topic unknown.
        return Err(Error::new(OPERATION, ErrorCode::BrokerNotAvailable, "the process knows no brokers yet"));
    }
    let mut message = v1::DescribeTopicsRequest { topics: topics.iter().cloned().collect(), ..Default::default() };
    let mut described = Described::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let page = answer(OPERATION, left, stub.describe_topics(request(message.clone(), left))).await?;
        for topic in page.topics {
            match topic.error {
                None => {
                    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
                    described.shapes.insert(topic.name, Shape { id: topic.topic_id, count });
                }
                Some(error) => {
                    let failure = Error::of_topic(&format!("describing topic {}", topic.name), error);
                    described.refusal = described.refusal.or(Some(failure).filter(|failure| !failure.is_retriable()));
                }
            }
        }
        if page.next_page_token.is_empty() {
            return Ok(described);
        }
        message.page_token = page.next_page_token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;

    fn shape(id: &str, count: i32) -> Shape {
        Shape { id: id.to_owned(), count }
    }

    fn answered(id: &str, count: i32) -> Described {
        Described { shapes: Shapes::from([("t".to_owned(), shape(id, count))]), refusal: None }
    }

    #[test]
    fn an_outdated_answer_hides_no_added_partitions() {
        for answers in [vec![answered("id", 1), answered("id", 2)], vec![answered("id", 2), answered("id", 1)]] {
            assert_eq!(merged(answers).shapes["t"], shape("id", 2));
        }
        assert_eq!(merged(vec![Described::default(), answered("id", 2)]).shapes["t"], shape("id", 2));
    }

    #[test]
    fn a_topic_has_the_id_that_most_processes_name() {
        let answers = vec![answered("old", 9), answered("new", 1), answered("new", 2)];
        assert_eq!(merged(answers).shapes["t"], shape("new", 2));
        assert_eq!(merged(vec![answered("old", 9), answered("new", 1)]).shapes["t"], shape("old", 9));
    }

    #[test]
    fn a_refusal_is_kept() {
        let refusal = Some(Error::new("x", ErrorCode::InvalidTopic, "no"));
        let found = merged(vec![answered("id", 1), Described { refusal, ..Default::default() }]);
        assert_eq!(found.refusal.and_then(|refusal| refusal.code()), Some(ErrorCode::InvalidTopic));
    }

    #[test]
    fn only_news_make_a_leader_assign_again() {
        let of = |shape: Shape| Shapes::from([("t".to_owned(), shape)]);
        let assigned = of(shape("id", 3));
        for (now, changed, case) in [
            (assigned.clone(), false, "the same"),
            (of(shape("id", 4)), true, "more partitions"),
            (of(shape("id", 2)), false, "an outdated answer"),
            (Shapes::new(), true, "a deleted topic"),
            (of(shape("other", 2)), true, "created again with fewer"),
            (of(shape("other", 3)), false, "created again with as many"),
        ] {
            assert_eq!(have_changed(&assigned, &now), changed, "{case}");
        }
        let missing = of(Shape::default());
        assert!(have_changed(&missing, &assigned) && !have_changed(&missing, &Shapes::new()));
    }

    #[tokio::test]
    async fn nothing_is_known_against_a_topic_while_no_broker_answers() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        find_topics(&client, "joining", &BTreeSet::from(["t".to_owned()])).await.unwrap();
    }
}

//! The JSON encoding that `tests/conformance/README.md` defines: 64-bit integers are strings, bytes are base64 or null.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use paceline::{ConsumedRecord, Error, Header, Record, Reset};
use serde_json::{Value, json};

pub fn text<'a>(command: &'a Value, name: &str) -> &'a str {
    command[name].as_str().unwrap_or_default()
}

pub fn number(command: &Value, name: &str, default: i32) -> i32 {
    command[name].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(default)
}

pub fn milliseconds(command: &Value, name: &str, default: u64) -> Duration {
    Duration::from_millis(command[name].as_u64().unwrap_or(default))
}

pub fn reset(command: &Value) -> Reset {
    match text(command, "reset") {
        "latest" => Reset::Latest,
        "error" => Reset::Error,
        _ => Reset::Earliest,
    }
}

pub fn integer(value: &Value) -> Result<i64, Error> {
    let parsed = value.as_str().and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| Error::InvalidArgument(format!("{value} is not an integer as a string")))
}

pub fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|encoded| STANDARD.decode(encoded).expect("base64 from the runner"))
}

fn optional_base64(value: Option<&[u8]>) -> Value {
    value.map_or(Value::Null, |bytes| STANDARD.encode(bytes).into())
}

pub fn record(topic: &str, fields: &Value) -> Result<Record, Error> {
    let headers = fields["headers"].as_array().into_iter().flatten();
    Ok(Record {
        topic: topic.to_owned(),
        partition: fields["partition"].as_i64().and_then(|partition| i32::try_from(partition).ok()),
        key: bytes(&fields["key"]).map(Into::into),
        value: bytes(&fields["value"]).map(Into::into),
        headers: headers
            .map(|pair| Header {
                key: pair[0].as_str().unwrap_or_default().to_owned(),
                value: bytes(&pair[1]).map(Into::into),
            })
            .collect(),
        timestamp_ms: match &fields["timestamp_ms"] {
            Value::Null => None,
            value => Some(integer(value)?),
        },
    })
}

pub fn record_to_json(record: &ConsumedRecord) -> Value {
    let headers: Vec<Value> =
        record.headers.iter().map(|header| json!([header.key, optional_base64(header.value.as_deref())])).collect();
    json!({
        "partition": record.partition,
        "offset": record.offset.to_string(),
        "key": optional_base64(record.key.as_deref()),
        "value": optional_base64(record.value.as_deref()),
        "headers": headers,
        "timestamp_ms": record.timestamp_ms.to_string(),
    })
}

pub fn failure(error: &Error) -> Value {
    let code = match error {
        Error::InvalidArgument(_) => "INVALID_REQUEST",
        _ => error.code().map_or("UNKNOWN_SERVER_ERROR", |code| code.name()),
    };
    json!({
        "code": code,
        "message": error.to_string(),
        "definite": error.is_definite(),
    })
}

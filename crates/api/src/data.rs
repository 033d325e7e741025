//! A session's own data: branches of databases, and its share of queues. The operator carries what a client says of them
//! to where it will be used; nothing uses it yet.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connect::InvalidParameters;

/// In the query of an address, each value is JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionData {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pg_branch_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mysql_branch_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mongodb_branch_names: Vec<String>,
    /// By the identifier of a queue: which messages are the session's, as a pattern for each attribute.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sqs_splits: BTreeMap<String, BTreeMap<String, String>>,
    /// By the name of a queue: the temporary one that takes its place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sqs_output_queues: BTreeMap<String, String>,
}

const NAMES: &str = "a JSON list of names";
const SPLITS: &str = "a JSON object with an object of patterns for each queue";
const QUEUES: &str = "a JSON object with a name for each queue";

impl SessionData {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a cluster gets that is not the Default: a branch is there once, while each cluster has queues of its own.
    #[must_use]
    pub fn without_branches(&self) -> Self {
        Self {
            sqs_splits: self.sqs_splits.clone(),
            sqs_output_queues: self.sqs_output_queues.clone(),
            ..Self::default()
        }
    }

    /// Reads a parameter, if it is one of these.
    pub(crate) fn add(&mut self, name: &str, value: &str) -> Result<(), InvalidParameters> {
        match name {
            "pg_branch_names" => self.pg_branch_names = read("pg_branch_names", value, NAMES)?,
            "mysql_branch_names" => {
                self.mysql_branch_names = read("mysql_branch_names", value, NAMES)?;
            }
            "mongodb_branch_names" => {
                self.mongodb_branch_names = read("mongodb_branch_names", value, NAMES)?;
            }
            "sqs_splits" => self.sqs_splits = read("sqs_splits", value, SPLITS)?,
            "sqs_output_queues" => {
                self.sqs_output_queues = read("sqs_output_queues", value, QUEUES)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The parameters that say all this.
    pub(crate) fn parameters(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("pg_branch_names", names(&self.pg_branch_names)),
            ("mysql_branch_names", names(&self.mysql_branch_names)),
            ("mongodb_branch_names", names(&self.mongodb_branch_names)),
            ("sqs_splits", by_queue(&self.sqs_splits)),
            ("sqs_output_queues", by_queue(&self.sqs_output_queues)),
        ]
    }
}

fn read<T: DeserializeOwned>(
    name: &'static str,
    value: &str,
    allowed: &'static str,
) -> Result<T, InvalidParameters> {
    serde_json::from_str(value).map_err(|_| InvalidParameters::Value {
        name,
        value: value.to_owned(),
        allowed,
    })
}

fn names(names: &[String]) -> Option<String> {
    let text = serde_json::to_string(names);
    text.ok().filter(|_| !names.is_empty())
}

fn by_queue<T: Serialize>(queues: &BTreeMap<String, T>) -> Option<String> {
    let text = serde_json::to_string(queues);
    text.ok().filter(|_| !queues.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConnectParameters;

    fn data() -> SessionData {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        SessionData {
            pg_branch_names: texts(&["postgres-test-pg-branch-5www5", "a \"b\" & c"]),
            mysql_branch_names: texts(&["orders"]),
            mongodb_branch_names: texts(&["carts"]),
            sqs_splits: [(
                "orders".to_owned(),
                [("user".to_owned(), "^anna+$".to_owned())].into(),
            )]
            .into(),
            sqs_output_queues: [("orders".to_owned(), "orders-5www5".to_owned())].into(),
        }
    }

    #[test]
    fn what_is_written_into_an_address_is_read() {
        let parameters = ConnectParameters {
            data: data(),
            ..ConnectParameters::default()
        };
        let query = parameters.query();
        assert_eq!(ConnectParameters::read(&query, None), Ok(parameters));
        // As clients write it that speak of one database only.
        let query = "connect=true&pg_branch_names=%5B%22postgres-test-pg-branch-5www5%22%5D";
        let read = ConnectParameters::read(query, None).unwrap();
        assert_eq!(read.data.pg_branch_names, ["postgres-test-pg-branch-5www5"]);
        assert!(!read.data.is_empty());
        let nothing = ConnectParameters::default();
        assert!(nothing.data.is_empty() && nothing.query().is_empty());
    }

    #[test]
    fn what_is_stored_is_read() {
        let stored = serde_json::to_value(data()).unwrap();
        let keys: Vec<_> = stored.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            keys,
            [
                "mongodbBranchNames",
                "mysqlBranchNames",
                "pgBranchNames",
                "sqsOutputQueues",
                "sqsSplits"
            ]
        );
        assert_eq!(
            serde_json::from_value::<SessionData>(stored).unwrap(),
            data()
        );
        assert_eq!(
            serde_json::to_string(&SessionData::default()).unwrap(),
            "{}"
        );
    }

    #[test]
    fn branches_are_taken_away_and_queues_are_not() {
        let rest = data().without_branches();
        let names = [
            rest.pg_branch_names,
            rest.mysql_branch_names,
            rest.mongodb_branch_names,
        ];
        assert_eq!(names.concat(), Vec::<String>::new());
        assert_eq!(rest.sqs_splits, data().sqs_splits);
        assert_eq!(rest.sqs_output_queues, data().sqs_output_queues);
    }

    #[test]
    fn wrong_values_are_named() {
        let cases = [
            ("pg_branch_names", "one", NAMES),
            ("mysql_branch_names", "{}", NAMES),
            ("mongodb_branch_names", "[1]", NAMES),
            ("sqs_splits", r#"{"orders":"all"}"#, SPLITS),
            ("sqs_output_queues", "[]", QUEUES),
        ];
        for (name, value, allowed) in cases {
            let error = SessionData::default().add(name, value).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("the connect parameter `{name}` is `{value}`; it can be {allowed}")
            );
        }
    }
}

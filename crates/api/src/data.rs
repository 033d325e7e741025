//! A session's own data: database branches and queue splits. The operator passes the client's values on to the session
//! objects; nothing uses them yet.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connect::InvalidParameters;

/// Database branches and queue splits of one session. In the query of a URL, each value is JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionData {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pg_branch_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mysql_branch_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mongodb_branch_names: Vec<String>,
    /// By queue identifier: which messages belong to the session, as a pattern for each attribute.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sqs_splits: BTreeMap<String, BTreeMap<String, String>>,
    /// By queue name: the temporary queue that replaces it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sqs_output_queues: BTreeMap<String, String>,
}

const ALLOWED_NAMES: &str = "a JSON list of names";
const ALLOWED_SPLITS: &str = "a JSON object with an object of patterns for each queue";
const ALLOWED_QUEUES: &str = "a JSON object with a name for each queue";

impl SessionData {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The data for a cluster that is not the Default: a branch exists once, while each cluster has its own queues.
    #[must_use]
    pub fn without_branches(&self) -> Self {
        Self {
            sqs_splits: self.sqs_splits.clone(),
            sqs_output_queues: self.sqs_output_queues.clone(),
            ..Self::default()
        }
    }

    /// Parses a connect parameter. Names that are not session data are ignored.
    pub(crate) fn add(&mut self, name: &str, value: &str) -> Result<(), InvalidParameters> {
        match name {
            "pg_branch_names" => {
                self.pg_branch_names = parse("pg_branch_names", value, ALLOWED_NAMES)?;
            }
            "mysql_branch_names" => {
                self.mysql_branch_names = parse("mysql_branch_names", value, ALLOWED_NAMES)?;
            }
            "mongodb_branch_names" => {
                self.mongodb_branch_names = parse("mongodb_branch_names", value, ALLOWED_NAMES)?;
            }
            "sqs_splits" => self.sqs_splits = parse("sqs_splits", value, ALLOWED_SPLITS)?,
            "sqs_output_queues" => {
                self.sqs_output_queues = parse("sqs_output_queues", value, ALLOWED_QUEUES)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The connect parameters of this data. Empty values have none.
    pub(crate) fn parameters(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("pg_branch_names", names_json(&self.pg_branch_names)),
            ("mysql_branch_names", names_json(&self.mysql_branch_names)),
            (
                "mongodb_branch_names",
                names_json(&self.mongodb_branch_names),
            ),
            ("sqs_splits", queues_json(&self.sqs_splits)),
            ("sqs_output_queues", queues_json(&self.sqs_output_queues)),
        ]
    }
}

fn parse<T: DeserializeOwned>(
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

fn names_json(names: &[String]) -> Option<String> {
    let text = serde_json::to_string(names);
    text.ok().filter(|_| !names.is_empty())
}

fn queues_json<T: Serialize>(queues: &BTreeMap<String, T>) -> Option<String> {
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
    fn queries_round_trip() {
        let parameters = ConnectParameters {
            data: data(),
            ..ConnectParameters::default()
        };
        let query = parameters.query();
        assert_eq!(ConnectParameters::read(&query, None), Ok(parameters));
        // The form of clients that know one database only.
        let query = "connect=true&pg_branch_names=%5B%22postgres-test-pg-branch-5www5%22%5D";
        let parsed = ConnectParameters::read(query, None).unwrap();
        assert_eq!(
            parsed.data.pg_branch_names,
            ["postgres-test-pg-branch-5www5"]
        );
        assert!(!parsed.data.is_empty());
        let empty = ConnectParameters::default();
        assert!(empty.data.is_empty() && empty.query().is_empty());
    }

    #[test]
    fn stored_data_round_trips() {
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
    fn other_clusters_get_queues_and_no_branches() {
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
    fn errors_name_invalid_values() {
        let cases = [
            ("pg_branch_names", "one", ALLOWED_NAMES),
            ("mysql_branch_names", "{}", ALLOWED_NAMES),
            ("mongodb_branch_names", "[1]", ALLOWED_NAMES),
            ("sqs_splits", r#"{"orders":"all"}"#, ALLOWED_SPLITS),
            ("sqs_output_queues", "[]", ALLOWED_QUEUES),
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

//! A list that can be written as one value.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A list of texts. In a file, one text stands for a list of one, or for several separated by semicolons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List<T>(pub Vec<T>);

pub(crate) trait ListItem {
    /// Whether a text is a list separated by semicolons.
    const SEPARATED: bool;
}

impl ListItem for String {
    const SEPARATED: bool = true;
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: JsonSchema + ListItem> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("ListOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let item = generator.subschema_for::<T>();
        let expand = if T::SEPARATED {
            "separated"
        } else {
            "one-or-many"
        };
        json_schema!({
            "anyOf": [item, { "type": "array", "items": item }],
            "x-expand": expand,
        })
    }
}

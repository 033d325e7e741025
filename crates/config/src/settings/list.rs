//! A list that can be written as one value.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A list. In a file, one value stands for a list of one, or a text for several separated by semicolons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List<T>(pub Vec<T>);

pub(crate) trait ListItem {
    /// How one value is written out as a list.
    const EXPAND: &str;
}

impl ListItem for String {
    const EXPAND: &str = "separated";
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
        // Numbers have no separators of their own.
        let text = (T::EXPAND == "numbers").then(|| json_schema!({ "type": "string" }));
        let many = json_schema!({ "type": "array", "items": item });
        let forms: Vec<Schema> = text.into_iter().chain([item, many]).collect();
        json_schema!({
            "anyOf": forms,
            "x-expand": T::EXPAND,
        })
    }
}

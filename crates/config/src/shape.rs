//! The annotated schema as a typed tree.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use serde_json::Value;

use crate::other_tools::KEYS_OF_OTHER_TOOLS;
use crate::schema;

/// The allowed values at one point of a config file.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) expand: Option<Expand>,
    pub(crate) kind: Kind,
    /// The allowed values, for messages.
    pub(crate) allowed: String,
    pub(crate) description: String,
    pub(crate) default: Option<Value>,
    pub(crate) examples: Vec<Value>,
    /// The possible values, with their descriptions.
    pub(crate) choices: Vec<(String, String)>,
}

/// How short forms are expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expand {
    Enabled,
    Files,
    Filter,
    Incoming,
    Network,
    Numbers,
    OneOrMany,
    Outgoing,
    Pair,
    Pairs,
    Separated,
    Target,
    TargetPath,
    Magic,
    Switch,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Map(MapShape),
    List(ListShape),
    Number(RangeInclusive<u64>),
    Text(TextShape),
    Boolean,
    /// Allowed, and ignored.
    Ignored,
    /// A key of other tools that has no effect here, with the reason.
    KeyOfOtherTool(&'static str),
}

#[derive(Debug)]
pub(crate) struct MapShape {
    pub(crate) keys: BTreeMap<String, Shape>,
    /// For maps with arbitrary keys.
    pub(crate) others: Option<Box<Shape>>,
    pub(crate) key_check: Option<Check>,
    pub(crate) exclusive: bool,
    /// At most one of these keys may be set.
    pub(crate) one_of: Vec<String>,
    /// Keys, each with another one that it requires.
    pub(crate) needs: Vec<(String, String)>,
    pub(crate) may_be_empty: bool,
    /// Whether a later layer replaces the whole map instead of some of its keys.
    pub(crate) replace: bool,
}

#[derive(Debug)]
pub(crate) struct ListShape {
    pub(crate) item: Box<Shape>,
    pub(crate) min: usize,
    pub(crate) max: usize,
}

#[derive(Debug)]
pub(crate) struct TextShape {
    pub(crate) check: Option<Check>,
    /// Whether numbers and booleans count as the text they are written with.
    pub(crate) any_scalar: bool,
    pub(crate) secret: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    Regex,
    Pattern,
    Query,
    Method,
    Time,
    Address,
    Target,
}

/// The shape of a whole config file.
pub(crate) fn root() -> &'static Shape {
    static ROOT: LazyLock<Shape> = LazyLock::new(|| Shape::of(&schema::annotated()));
    &ROOT
}

impl Shape {
    fn of(schema: &Value) -> Self {
        let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
        let long = long_form(schema);
        let allowed = text("x-allowed").map_or_else(|| allowed(schema), ToOwned::to_owned);
        Self {
            expand: text("x-expand").and_then(Expand::named),
            kind: Kind::of(long),
            allowed,
            description: text("description").unwrap_or_default().to_owned(),
            default: schema.get("default").cloned(),
            examples: list(schema, "examples").to_vec(),
            choices: choices(long),
        }
    }

    /// The shape of a key, as in `feature.fs.mode`.
    pub(crate) fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |shape, key| shape.key(key))
    }

    pub(crate) fn key(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Map(map) => map.keys.get(key).or(map.others.as_deref()),
            _ => None,
        }
    }

    /// Every key below this one with its whole path, in alphabetical order.
    pub(crate) fn all_keys(&self) -> Vec<(String, &Self)> {
        let mut found = Vec::new();
        self.collect_keys("", &mut found);
        found
    }

    fn collect_keys<'s>(&'s self, prefix: &str, found: &mut Vec<(String, &'s Self)>) {
        if let Kind::Map(map) = &self.kind {
            for (key, shape) in &map.keys {
                let path = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                found.push((path.clone(), shape));
                shape.collect_keys(&path, found);
            }
        }
    }
}

impl Expand {
    fn named(name: &str) -> Option<Self> {
        match name {
            "enabled" => Some(Self::Enabled),
            "files" => Some(Self::Files),
            "filter" => Some(Self::Filter),
            "incoming" => Some(Self::Incoming),
            "network" => Some(Self::Network),
            "numbers" => Some(Self::Numbers),
            "one-or-many" => Some(Self::OneOrMany),
            "outgoing" => Some(Self::Outgoing),
            "pair" => Some(Self::Pair),
            "pairs" => Some(Self::Pairs),
            "separated" => Some(Self::Separated),
            "target" => Some(Self::Target),
            "target-path" => Some(Self::TargetPath),
            "magic" => Some(Self::Magic),
            "switch" => Some(Self::Switch),
            _ => None,
        }
    }
}

impl Kind {
    fn of(schema: &Value) -> Self {
        if let Some(index) = schema.get("x-other-tool").and_then(Value::as_u64) {
            let key = usize::try_from(index)
                .ok()
                .and_then(|index| KEYS_OF_OTHER_TOOLS.get(index));
            return Self::KeyOfOtherTool(key.map_or("", |key| key.reason));
        }
        let is_set = |keyword: &str| schema.get(keyword).is_some();
        match schema.get("type").and_then(Value::as_str) {
            _ if is_set("x-ignored") => Self::Ignored,
            Some("object") => Self::Map(MapShape::of(schema)),
            Some("array") => {
                let item = schema.get("items").unwrap_or(&Value::Null);
                Self::List(ListShape {
                    item: Box::new(Shape::of(item)),
                    min: size(schema, "minItems").unwrap_or(0),
                    max: size(schema, "maxItems").unwrap_or(usize::MAX),
                })
            }
            Some("integer") => {
                let number = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
                let (min, max) = (number("minimum"), number("maximum"));
                Self::Number(min.unwrap_or(0)..=max.unwrap_or(u64::MAX))
            }
            Some("boolean") => Self::Boolean,
            _ => Self::Text(TextShape {
                check: check(schema, "x-check"),
                any_scalar: schema.get("type").is_some_and(Value::is_array),
                secret: is_set("x-secret"),
            }),
        }
    }
}

impl MapShape {
    fn of(schema: &Value) -> Self {
        let keys = schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, property)| (key.clone(), Shape::of(property)))
            .collect();
        let others = schema
            .get("additionalProperties")
            .filter(|others| others.is_object())
            .map(|others| Box::new(Shape::of(others)));
        Self {
            keys,
            others,
            key_check: check(schema, "x-key-check"),
            exclusive: schema.get("maxProperties") == Some(&1.into()),
            one_of: texts(schema.get("x-one-of")),
            needs: schema
                .get("x-needs")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .flat_map(|(key, needed)| {
                    let needed = texts(Some(needed)).into_iter();
                    needed.map(|needed| (key.clone(), needed))
                })
                .collect(),
            may_be_empty: size(schema, "minProperties").unwrap_or(0) == 0,
            replace: schema.get("x-replace").is_some(),
        }
    }
}

fn size(schema: &Value, keyword: &str) -> Option<usize> {
    let size = schema.get(keyword).and_then(Value::as_u64)?;
    usize::try_from(size).ok()
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str)
        .map(ToOwned::to_owned)
        .collect()
}

fn long_form(schema: &Value) -> &Value {
    list(schema, "anyOf").last().unwrap_or(schema)
}

fn check(schema: &Value, keyword: &str) -> Option<Check> {
    match schema.get(keyword)?.as_str()? {
        "regex" => Some(Check::Regex),
        "pattern" => Some(Check::Pattern),
        "query" => Some(Check::Query),
        "method" => Some(Check::Method),
        "time" => Some(Check::Time),
        "address" => Some(Check::Address),
        "target" => Some(Check::Target),
        _ => None,
    }
}

fn list<'s>(schema: &'s Value, keyword: &str) -> &'s [Value] {
    schema
        .get(keyword)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn choices(schema: &Value) -> Vec<(String, String)> {
    let text = |value: &Value, keyword: &str| {
        let text = value.get(keyword).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    list(schema, "oneOf")
        .iter()
        .map(|choice| (text(choice, "const"), text(choice, "description")))
        .collect()
}

fn allowed(schema: &Value) -> String {
    let branches = list(schema, "anyOf");
    if !branches.is_empty() {
        let branches: Vec<String> = branches.iter().map(allowed).collect();
        return branches.join(", or ");
    }
    let values = list(schema, "enum")
        .iter()
        .filter_map(Value::as_str)
        .map(ToOwned::to_owned);
    let values: Vec<String> = values
        .chain(choices(schema).into_iter().map(|(value, _)| value))
        .map(|value| format!("`{value}`"))
        .collect();
    if !values.is_empty() {
        return values.join(", ");
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => "a map",
        Some("array") => "a list",
        Some("boolean") => "true or false",
        Some("integer") => "a number",
        _ => "text",
    }
    .to_owned()
}

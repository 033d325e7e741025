//! The effective configuration: every key with its value and the reason for it.

use serde_json::Value;

use crate::layers::{Origin, Resolved};
use crate::shape::{self, Kind, Shape};

/// One key of the effective configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub key: String,
    /// As JSON. A value that may be a secret is `(hidden)`, and an unset value is `null`.
    pub value: String,
    pub origin: Origin,
    /// Bundles that have added to the value.
    pub added: Vec<&'static str>,
}

impl Effective {
    /// The reason for the value, as text.
    pub fn reason(&self) -> String {
        let added = self.added.join(", ");
        match &self.origin {
            origin if self.added.is_empty() => origin.to_string(),
            Origin::Default => format!("added by {added}"),
            origin => format!("{origin}, added to by {added}"),
        }
    }

    pub fn is_default(&self) -> bool {
        self.origin == Origin::Default && self.added.is_empty()
    }
}

impl Resolved {
    /// Every key, in alphabetical order.
    pub fn effective(&self) -> Vec<Effective> {
        let settings = serde_json::to_value(&self.settings).unwrap_or(Value::Null);
        let mut effective = Vec::new();
        self.explain(&settings, shape::root(), "", &mut effective);
        effective
    }

    fn explain(&self, value: &Value, shape: &Shape, key: &str, effective: &mut Vec<Effective>) {
        let join = |inner: &str| {
            if key.is_empty() {
                inner.to_owned()
            } else {
                format!("{key}.{inner}")
            }
        };
        match &shape.kind {
            Kind::Ignored | Kind::KeyOfOtherTool(_) => {}
            Kind::Map(map) => {
                for (inner, shape) in &map.keys {
                    let value = value.get(inner).unwrap_or(&Value::Null);
                    self.explain(value, shape, &join(inner), effective);
                }
                if let Some(shape) = &map.others {
                    let members = value.as_object().into_iter().flatten();
                    for (inner, value) in members.clone() {
                        self.explain(value, shape, &join(inner), effective);
                    }
                    if members.count() == 0 {
                        effective.push(self.one("{}".to_owned(), key));
                    }
                }
            }
            kind => {
                let secret = matches!(kind, Kind::Text(text) if text.secret);
                let value = if secret {
                    "(hidden)".to_owned()
                } else {
                    value.to_string()
                };
                effective.push(self.one(value, key));
            }
        }
    }

    fn one(&self, value: String, key: &str) -> Effective {
        let mut added = self.origins.added(key);
        // An entry of a map that was not set by the user was added to the map.
        if added.is_empty()
            && *self.origins.of(key) == Origin::Default
            && let Some((_, bundles)) = self.origins.added_to_maps().find(|(map, _)| {
                let rest = key.strip_prefix(*map);
                rest.is_some_and(|rest| rest.starts_with('.'))
            })
        {
            added = bundles;
        }
        Effective {
            key: key.to_owned(),
            value,
            origin: self.origins.of(key).clone(),
            added: added.to_vec(),
        }
    }
}

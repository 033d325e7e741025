//! Checks a tree against the shape of a config file, and expands short forms.
//!
//! It continues after a problem, so that all are found at once.

mod expand;
mod suggest;

use std::collections::HashSet;

use crate::problem::ProblemKind;
use crate::report::MAX_KEPT;
use crate::settings::{Target, check_method, check_pattern, check_query, check_regex, check_time};
use crate::shape::{self, Check, Expand, Kind, ListShape, MapShape, Shape, TextShape};
use crate::tree::{Key, Node, Span, Value};

pub use suggest::closest;

/// A problem with its span, which is not converted to lines and columns yet.
#[derive(Debug)]
pub(crate) struct FoundProblem {
    pub(crate) kind: ProblemKind,
    pub(crate) key: String,
    pub(crate) span: Span,
}

/// The results of a check besides the values.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<FoundProblem>,
    /// The spans of values that must not be shown.
    pub(crate) secrets: Vec<Span>,
}

/// Returns the expanded tree, without values that are invalid, have no effect or are null.
pub(crate) fn read(tree: Node, findings: &mut Findings) -> Option<Node> {
    let mut reader = Reader {
        findings,
        path: Vec::new(),
    };
    reader.read(tree, shape::root())
}

struct Reader<'f> {
    findings: &'f mut Findings,
    path: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, node: Node, shape: &Shape) -> Option<Node> {
        let node = match shape.expand {
            Some(expand) => expand::write_out(expand, node),
            None => node,
        };
        let span = node.span;
        match (&shape.kind, node.value) {
            (Kind::Ignored, _) | (_, Value::Null) => None,
            (Kind::KeyOfOtherTool(reason), _) => {
                let key = self.path.join(".");
                self.report(ProblemKind::NoEffect { key, reason }, span);
                None
            }
            (Kind::Map(map), Value::Map(entries)) => Some(self.read_map(entries, span, map)),
            (Kind::List(list), Value::List(items)) => self.read_list(items, span, list),
            (Kind::Number(range), Value::Number(text)) => {
                if text
                    .parse()
                    .is_ok_and(|number: u64| range.contains(&number))
                {
                    let value = Value::Number(text);
                    return Some(Node { value, span });
                }
                let (min, max) = (*range.start(), *range.end());
                let found = text;
                self.report(ProblemKind::OutOfRange { found, min, max }, span);
                None
            }
            (Kind::Boolean, Value::Boolean(boolean)) => Some(Node {
                value: Value::Boolean(boolean),
                span,
            }),
            (Kind::Text(text), value) => self.read_text(Node { value, span }, shape, text),
            (_, value) => self.wrong_kind(&Node { value, span }, shape),
        }
    }

    fn read_list(&mut self, items: Vec<Node>, span: Span, list: &ListShape) -> Option<Node> {
        if items.len() < list.min || items.len() > list.max {
            let (min, max, found) = (list.min, list.max, items.len());
            let kind = ProblemKind::WrongLength { min, max, found };
            self.report(kind, span);
            return None;
        }
        let before = self.findings.problems.len();
        let items: Vec<Node> = items
            .into_iter()
            .filter_map(|node| self.read_item(node, &list.item))
            .collect();
        // A list of fixed length with an invalid item is dropped as a whole.
        if items.len() < list.min && self.findings.problems.len() > before {
            return None;
        }
        let value = Value::List(items);
        Some(Node { value, span })
    }

    /// A null is a missing value, which a list cannot contain.
    fn read_item(&mut self, node: Node, shape: &Shape) -> Option<Node> {
        match node.value {
            Value::Null => self.wrong_kind(&node, shape),
            _ => self.read(node, shape),
        }
    }

    fn read_map(&mut self, entries: Vec<(Key, Node)>, span: Span, map: &MapShape) -> Node {
        let mut read: Vec<(Key, Node)> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        // A key with a null value is treated like a missing key.
        let has_value = |node: &Node| !matches!(node.value, Value::Null);
        let there = entries.iter().filter(|(_, node)| has_value(node));
        let keys: Vec<Key> = there.map(|(key, _)| key.clone()).collect();
        for (key, node) in entries {
            self.path.push(key.text.clone());
            if !seen.insert(key.text.clone()) {
                let name = key.text.clone();
                self.report(ProblemKind::SetTwice { key: name }, key.span);
            } else if let Some(node) = self.read_entry(&key, node, map) {
                read.push((key, node));
            }
            self.path.pop();
        }
        if let (true, [(first, _), (second, _), ..]) = (map.exclusive, read.as_slice()) {
            let keys = [first.text.clone(), second.text.clone()];
            let span = second.span;
            self.report(ProblemKind::Exclusive { keys }, span);
        }
        self.check_together(&keys, span, map);
        let value = Value::Map(read);
        Node { value, span }
    }

    /// Checks keys that exclude or require one another.
    fn check_together(&mut self, keys: &[Key], span: Span, map: &MapShape) {
        if keys.is_empty() && !map.may_be_empty {
            let keys = map.one_of.clone();
            self.report(ProblemKind::Empty { keys }, span);
        }
        let mut alternatives = keys.iter().filter(|key| map.one_of.contains(&key.text));
        if let (Some(first), Some(second)) = (alternatives.next(), alternatives.next()) {
            let keys = [first.text.clone(), second.text.clone()];
            self.report(ProblemKind::Exclusive { keys }, second.span);
        }
        let find = |name: &String| keys.iter().find(|key| key.text == *name);
        let incomplete = map.needs.iter().find_map(|(key, needed)| {
            Some((find(key)?, needed)).filter(|_| find(needed).is_none())
        });
        if let Some((dependent, needed)) = incomplete {
            let (key, needed) = (dependent.text.clone(), needed.clone());
            self.report(ProblemKind::Incomplete { key, needed }, dependent.span);
        }
    }

    fn read_entry(&mut self, key: &Key, node: Node, map: &MapShape) -> Option<Node> {
        if let Some(shape) = map.keys.get(&key.text) {
            // A warning refers to the name, not to the value.
            let about_name = matches!(shape.kind, Kind::KeyOfOtherTool(_));
            let span = if about_name { key.span } else { node.span };
            return self.read(Node { span, ..node }, shape);
        }
        if let Some(shape) = map.others.as_deref() {
            if let Some(check) = map.key_check {
                self.check(check, &key.text, key.span);
            }
            return self.read_item(node, shape);
        }
        let allowed = map
            .keys
            .iter()
            .filter(|(_, shape)| !matches!(shape.kind, Kind::KeyOfOtherTool(_) | Kind::Ignored))
            .map(|(key, _)| key.clone())
            .collect();
        let kind = ProblemKind::UnknownKey {
            key: key.text.clone(),
            allowed,
            suggestion: self
                .may_suggest()
                .then(|| suggest::key(&key.text, map))
                .flatten(),
        };
        self.report(kind, key.span);
        None
    }

    fn read_text(&mut self, node: Node, shape: &Shape, text: &TextShape) -> Option<Node> {
        let span = node.span;
        if text.secret {
            self.findings.secrets.push(span);
        }
        let value = match node.value {
            Value::Text(value) => value,
            Value::Number(value) if text.any_scalar => value,
            Value::Boolean(value) if text.any_scalar => value.to_string(),
            value => return self.wrong_kind(&Node { value, span }, shape),
        };
        if value.contains("{{") && value.contains("}}") {
            self.report(ProblemKind::Template, span);
        }
        let choices = &shape.choices;
        if !choices.is_empty() && !choices.iter().any(|(choice, _)| *choice == value) {
            let allowed: Vec<String> = choices.iter().map(|(choice, _)| choice.clone()).collect();
            let suggestion = closest(&value, allowed.iter().map(String::as_str));
            let found = value.clone();
            let kind = ProblemKind::UnknownValue {
                found,
                allowed,
                suggestion,
            };
            self.report(kind, span);
            return None;
        }
        if let Some(check) = text.check
            && !self.check(check, &value, span)
        {
            return None;
        }
        let value = Value::Text(value);
        Some(Node { value, span })
    }

    fn check(&mut self, check: Check, text: &str, span: Span) -> bool {
        let problem = match check {
            Check::Regex => check_regex(text)
                .err()
                .map(|reason| ProblemKind::Regex { reason }),
            Check::Pattern => check_pattern(text)
                .err()
                .map(|reason| ProblemKind::Regex { reason }),
            Check::Query => check_query(text)
                .err()
                .map(|reason| ProblemKind::Query { reason }),
            Check::Method => {
                let found = text.to_owned();
                (!check_method(text)).then_some(ProblemKind::Method { found })
            }
            Check::Time => {
                let found = text.to_owned();
                check_time(text)
                    .is_none()
                    .then_some(ProblemKind::Time { found })
            }
            Check::Address => text
                .parse::<crate::address::AddressPattern>()
                .err()
                .map(ProblemKind::Address),
            Check::Target => text
                .parse::<Target>()
                .err()
                .map(|error| ProblemKind::Target(error, suggest::target(text))),
        };
        match problem {
            Some(kind) => {
                self.report(kind, span);
                false
            }
            None => true,
        }
    }

    fn wrong_kind(&mut self, node: &Node, shape: &Shape) -> Option<Node> {
        let kind = match (&node.value, shape.expand) {
            // The type is allowed, but the value is malformed.
            (Value::Text(found) | Value::Number(found), Some(Expand::Pair | Expand::Pairs)) => {
                let found = found.clone();
                ProblemKind::Pair { found }
            }
            _ => ProblemKind::WrongKind {
                allowed: shape.allowed.clone(),
                found: node.kind_name(),
                advice: advice(node, shape),
            },
        };
        self.report(kind, node.span);
        None
    }

    /// Computing a suggestion takes time, so there is none after the first thousand problems, which are not shown.
    fn may_suggest(&self) -> bool {
        self.findings.problems.len() < MAX_KEPT
    }

    fn report(&mut self, kind: ProblemKind, span: Span) {
        let key = self.path.join(".");
        self.findings
            .problems
            .push(FoundProblem { kind, key, span });
    }
}

fn advice(node: &Node, shape: &Shape) -> &'static str {
    match (&node.value, &shape.kind) {
        (Value::Null, _) => "write a value, or \"\" for an empty text, or remove the key",
        (Value::Text(text), Kind::Boolean) if text == "true" || text == "false" => {
            "remove the quotes"
        }
        (_, Kind::Boolean) => "write `true` or `false`",
        (Value::Text(text), Kind::Number(_)) if text.parse::<u64>().is_ok() => "remove the quotes",
        (_, Kind::Number(_)) => "write a number without quotes",
        (Value::Number(_), Kind::Text(text)) if text.check == Some(Check::Time) => {
            "write it with its unit: `500ms`, `10s` or `2m`"
        }
        (Value::Number(_) | Value::Boolean(_), Kind::Text(_)) if shape.choices.is_empty() => {
            "put it in quotes"
        }
        (Value::Map(_), Kind::Text(text)) if text.check == Some(Check::Target) => {
            "for example `{\"deployment\": \"checkout\", \"container\": \"app\"}`"
        }
        (Value::List(items), Kind::Text(_)) if items.len() == 1 => "remove the brackets",
        _ => "change the value, or remove the key for its default",
    }
}

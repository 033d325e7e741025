//! YAML 1.2 with its core schema: only `true`, `false` and `null` are special words, not `yes` or `no`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use super::{Key, MAX_DEPTH, MAX_VALUES, Node, ParseProblem, Span, Value};
use crate::format::Format;
use crate::problem::ProblemKind;

pub(super) fn parse(source: usize, text: &str) -> (Option<Node>, Vec<ParseProblem>) {
    let mut builder = Builder::new(source, text);
    for next in Parser::new_from_str(text) {
        let step = match next {
            Ok((event, span)) => {
                let range = span.byte_range().unwrap_or(0..0);
                builder.take(event, builder.span(range.start, range.end))
            }
            Err(error) => {
                let start = error.marker().byte_offset().unwrap_or(text.len());
                let message = error.to_string();
                let message = without_location(&message);
                let span = builder.span(start, start);
                Err(ParseProblem::syntax(Format::Yaml, message, span))
            }
        };
        match step {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(problem) => return (None, vec![problem]),
        }
    }
    let span = builder.span(0, text.len());
    let nothing = Node {
        value: Value::Null,
        span,
    };
    (Some(builder.root.unwrap_or(nothing)), Vec::new())
}

/// Removes the location at the end of the parser's messages, because the report has its own.
fn without_location(message: &str) -> &str {
    [" at byte ", " at char ", " at line "]
        .into_iter()
        .filter_map(|prefix| message.find(prefix))
        .min()
        .map_or(message, |end| &message[..end])
}

/// Builds a tree from events, with an explicit stack.
struct Builder<'t> {
    source: usize,
    text: &'t str,
    open: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, Node>,
    values: usize,
}

/// A list or map that is not complete yet.
struct Open {
    start: Span,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map(Vec<(Key, Node)>, Option<Key>),
}

type Step = Result<ControlFlow<()>, ParseProblem>;

impl<'t> Builder<'t> {
    fn new(source: usize, text: &'t str) -> Self {
        Self {
            source,
            text,
            open: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            values: 0,
        }
    }

    /// The parser's spans are correct, but a wrong one must never crash the report.
    fn span(&self, start: usize, end: usize) -> Span {
        let length = self.text.len();
        Span::new(
            self.source,
            start.min(length),
            end.min(length).max(start.min(length)),
        )
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Step {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text, style, tag.as_deref());
                return self.add(Node { value, span }, anchor, 1);
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(Content::List(Vec::new()), anchor, span)?;
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(Content::Map(Vec::new(), None), anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let value = match open.content {
                        Content::List(items) => Value::List(items),
                        Content::Map(entries, _) => Value::Map(entries),
                    };
                    let span = self.span(open.start.start, span.end);
                    return self.add(Node { value, span }, open.anchor, 1);
                }
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    let message = "an alias inside of what it stands for";
                    return Err(ParseProblem::syntax(Format::Yaml, message, span));
                };
                // The values of an alias are counted again, and can be nested deeper than the text.
                if self.open.len() + depth(&node) > MAX_DEPTH {
                    let kind = ProblemKind::TooDeep {
                        max_depth: MAX_DEPTH,
                    };
                    return Err(ParseProblem { kind, span });
                }
                let values = size(&node, MAX_VALUES);
                return self.add(node, 0, values);
            }
            Event::DocumentStart(..) if self.root.is_some() => {
                let kind = ProblemKind::SecondDocument;
                return Err(ParseProblem { kind, span });
            }
            Event::StreamEnd => return Ok(ControlFlow::Break(())),
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    fn begin(&mut self, content: Content, anchor: usize, start: Span) -> Result<(), ParseProblem> {
        if self.open.len() >= MAX_DEPTH {
            let kind = ProblemKind::TooDeep {
                max_depth: MAX_DEPTH,
            };
            return Err(ParseProblem { kind, span: start });
        }
        self.open.push(Open {
            start,
            anchor,
            content,
        });
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize, values: usize) -> Step {
        self.values += values;
        if self.values > MAX_VALUES {
            let kind = ProblemKind::TooManyValues { max: MAX_VALUES };
            let span = node.span;
            return Err(ParseProblem { kind, span });
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map(entries, waiting)) => match waiting.take() {
                Some(key) => entries.push((key, node)),
                None => *waiting = Some(key(node)?),
            },
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn key(node: Node) -> Result<Key, ParseProblem> {
    let span = node.span;
    let text = match node.value {
        Value::Text(text) | Value::Number(text) => text,
        Value::Boolean(boolean) => boolean.to_string(),
        Value::Null => "null".to_owned(),
        Value::List(_) | Value::Map(_) => {
            let kind = ProblemKind::KeyIsNotText;
            return Err(ParseProblem { kind, span });
        }
    };
    Ok(Key { text, span })
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
    if style != ScalarStyle::Plain || is_text {
        return Value::Text(text.into_owned());
    }
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Boolean(true),
        "false" | "False" | "FALSE" => Value::Boolean(false),
        _ if is_number(&text) => Value::Number(text.into_owned()),
        _ => Value::Text(text.into_owned()),
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    let starts_like_one = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    starts_like_one && text.parse::<f64>().is_ok()
}

/// Counts values up to `max`, since a tree of aliases can be too large to count.
fn size(node: &Node, max: usize) -> usize {
    let mut count = 1;
    match &node.value {
        Value::List(items) => {
            for item in items {
                if count > max {
                    break;
                }
                count += size(item, max - count.min(max));
            }
        }
        Value::Map(entries) => {
            for (_, value) in entries {
                if count > max {
                    break;
                }
                count += size(value, max - count.min(max));
            }
        }
        _ => {}
    }
    count
}

fn depth(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, value)| depth(value))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}

//! Merges settings from several sources: defaults, then files, then environment variables, then command line flags.
//!
//! Maps are merged key by key and anything else is replaced. Each value keeps its origin.

use std::collections::BTreeMap;
use std::fmt;

use crate::environment::{PREFIX, VARIABLES};
use crate::format::Format;
use crate::problem::ProblemKind;
use crate::read::{self, Findings, FoundProblem};
use crate::report::Report;
use crate::settings::Settings;
use crate::shape::{self, Kind, Shape};
use crate::source::{Location, Rank, Sources};
use crate::tree::{self, Key, Node, Span, Value};

/// The sources of settings. The order in which they are added matters only within one kind.
#[derive(Default)]
pub struct Layers {
    sources: Sources,
    trees: Vec<(Rank, Node)>,
    findings: Findings,
}

/// Resolved settings, with warnings about them.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub settings: Settings,
    pub origins: Origins,
    /// Contains warnings only.
    pub warnings: Report,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(Location),
    Variable(String),
    Flag(String),
    /// A session without a target needs this value, whatever was set.
    NoTarget,
}

/// Where each value comes from, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(
    BTreeMap<String, Origin>,
    BTreeMap<String, Vec<&'static str>>,
);

impl Layers {
    pub fn new() -> Self {
        Self::default()
    }

    /// The text of a config file. `name` is its name in reports.
    #[must_use]
    pub fn file(mut self, name: &str, text: &str, format: Format) -> Self {
        let source = self.sources.add(Rank::File, name, text);
        let text = self.sources.get(source).map_or("", |source| &source.text);
        let (tree, problems) = tree::parse(source, text, format);
        let problems: Vec<_> = problems
            .into_iter()
            .map(|problem| {
                (
                    about_template(problem.kind, text, problem.span),
                    problem.span,
                )
            })
            .collect();
        for (kind, span) in problems {
            self.report(kind, String::new(), span);
        }
        if let Some(tree) = tree {
            self.add(Rank::File, tree);
        }
        self
    }

    /// Environment variables. Those without our prefix are ignored; those with it that set no key are reported, except the
    /// ones in `others`, which belong to other parts of the program.
    #[must_use]
    pub fn variables<N, V>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
        others: &[&str],
    ) -> Self
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        for (name, value) in variables {
            let (name, value) = (name.as_ref(), value.as_ref());
            if !name.starts_with(PREFIX) || others.contains(&name) {
                continue;
            }
            let (source, span) = self.add_text(Rank::Variable, name, &format!("{name}="), value);
            match VARIABLES.iter().find(|variable| variable.name == name) {
                Some(variable) => self.set(Rank::Variable, variable.key, value, span),
                None => {
                    let names = VARIABLES.iter().map(|variable| variable.name);
                    let suggestion = read::closest(name, names);
                    let name = name.to_owned();
                    let (start, end) = (0, name.len());
                    let span = Span { source, start, end };
                    let kind = ProblemKind::UnknownVariable { name, suggestion };
                    self.report(kind, String::new(), span);
                }
            }
        }
        self
    }

    /// A command line flag that sets a key, as in `("--fs-mode", "feature.fs.mode", "write")`. A flag for a list can be
    /// repeated; one for a map has the form `NAME=value`.
    #[must_use]
    pub fn flag(mut self, flag: &str, key: &str, value: &str) -> Self {
        let (_, span) = self.add_text(Rank::Flag, flag, &format!("{flag} "), value);
        self.set(Rank::Flag, key, value, span);
        self
    }

    /// The resolved settings, or all problems.
    pub fn resolve(mut self) -> Result<Resolved, Report> {
        // The sort is stable: within one kind, the later source has precedence.
        self.trees.sort_by_key(|(rank, _)| *rank);
        let nothing = Node {
            value: Value::Map(Vec::new()),
            span: Span {
                source: usize::MAX,
                start: 0,
                end: 0,
            },
        };
        let trees = std::mem::take(&mut self.trees);
        let merged = trees.into_iter().fold(nothing, |merged, (_, tree)| {
            self.merge(merged, tree, shape::root())
        });
        let mut origins = Origins::default();
        self.collect_origins(&merged, "", &mut origins);
        let settings = match tree::deserialize::<Settings>(merged.clone()) {
            Ok(settings) => Some(settings),
            Err(message) => {
                self.report(
                    ProblemKind::Inconsistent { message },
                    String::new(),
                    merged.span,
                );
                None
            }
        };
        let report = Report::new(&self.sources, self.findings);
        match settings {
            Some(settings) if !report.has_errors() => Ok(Resolved {
                settings,
                origins,
                warnings: report,
            }),
            _ => Err(report),
        }
    }

    /// All problems, whether or not the settings can be used.
    pub(crate) fn into_report(self) -> Report {
        match self.resolve() {
            Ok(resolved) => resolved.warnings,
            Err(report) => report,
        }
    }

    fn add_text(&mut self, rank: Rank, name: &str, before: &str, value: &str) -> (usize, Span) {
        let text = format!("{before}{value}");
        let source = self.sources.add(rank, name, &text);
        let (start, end) = (before.len(), text.len());
        (source, Span { source, start, end })
    }

    /// Sets one key from text, as if it stood in a file.
    fn set(&mut self, rank: Rank, key: &str, text: &str, span: Span) {
        let shape = shape::root().at(key);
        let leaf = leaf(shape, text, span);
        let tree = key.rsplit('.').fold(leaf, |inner, key| {
            let text = key.to_owned();
            let value = Value::Map(vec![(Key { text, span }, inner)]);
            Node { value, span }
        });
        self.add(rank, tree);
    }

    fn add(&mut self, rank: Rank, tree: Node) {
        if let Some(tree) = read::read(tree, &mut self.findings) {
            self.trees.push((rank, tree));
        }
    }

    fn report(&mut self, kind: ProblemKind, key: String, span: Span) {
        self.findings
            .problems
            .push(FoundProblem { kind, key, span });
    }

    fn merge(&self, base: Node, over: Node, shape: &Shape) -> Node {
        let span = over.span;
        match (base.value, over.value, &shape.kind) {
            (Value::Map(mut base), Value::Map(over), Kind::Map(map)) if !map.replace => {
                for (key, node) in over {
                    match base.iter_mut().find(|(other, _)| other.text == key.text) {
                        Some((_, old)) => {
                            let inner = shape.key(&key.text).unwrap_or(shape);
                            *old = self.merge(old.clone(), node, inner);
                        }
                        None => base.push((key, node)),
                    }
                }
                let value = Value::Map(base);
                Node { value, span }
            }
            // A repeated flag adds to a list.
            (Value::List(mut items), Value::List(more), _)
                if self.is_flag(base.span) && self.is_flag(span) =>
            {
                items.extend(more);
                let value = Value::List(items);
                Node { value, span }
            }
            (Value::Map(base_entries), Value::Map(over_entries), Kind::Map(map))
                if map.replace && self.is_flag(base.span) && self.is_flag(span) =>
            {
                Self::merge_flags(&base_entries, over_entries, span)
            }
            (_, value, _) => Node { value, span },
        }
    }

    /// A repeated flag for the list inside of a filter extends it; one for the other list replaces it.
    fn merge_flags(base: &[(Key, Node)], over: Vec<(Key, Node)>, span: Span) -> Node {
        let mut entries = over;
        for (key, node) in &mut entries {
            let before = base.iter().find(|(other, _)| other.text == key.text);
            if let (Some((_, before)), Value::List(items)) = (before, &mut node.value)
                && let Value::List(earlier) = &before.value
            {
                items.splice(0..0, earlier.iter().cloned());
            }
        }
        let value = Value::Map(entries);
        Node { value, span }
    }

    fn is_flag(&self, span: Span) -> bool {
        let source = self.sources.get(span.source);
        source.is_some_and(|source| source.rank == Rank::Flag)
    }

    fn collect_origins(&self, node: &Node, path: &str, origins: &mut Origins) {
        if let Value::Map(entries) = &node.value {
            for (key, node) in entries {
                let path = if path.is_empty() {
                    key.text.clone()
                } else {
                    format!("{path}.{}", key.text)
                };
                self.collect_origins(node, &path, origins);
            }
        } else if let Some(source) = self.sources.get(node.span.source) {
            let origin = match source.rank {
                Rank::File => Origin::File(self.sources.locate(node.span)),
                Rank::Variable => Origin::Variable(source.name.clone()),
                Rank::Flag => Origin::Flag(source.name.clone()),
            };
            origins.0.insert(path.to_owned(), origin);
        }
    }
}

/// A template is rarely valid before it is expanded, and then the user should not correct the syntax.
fn about_template(mut kind: ProblemKind, text: &str, span: Span) -> ProblemKind {
    if let ProblemKind::Syntax { template, .. } = &mut kind {
        let before = text.get(..span.start).unwrap_or_default();
        let line = text.lines().nth(before.matches('\n').count());
        *template = line.is_some_and(|line| line.contains("{{") || line.contains("{%"));
    }
    kind
}

fn leaf(shape: Option<&Shape>, text: &str, span: Span) -> Node {
    let value = Value::Text(text.to_owned());
    let value = match shape.map(|shape| &shape.kind) {
        Some(Kind::Boolean) => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Value::Boolean(true),
            "false" | "0" | "no" | "off" => Value::Boolean(false),
            _ => value,
        },
        Some(Kind::Map(map)) if map.others.is_some() => match text.split_once('=') {
            Some((name, value)) => {
                let key = Key {
                    text: name.to_owned(),
                    span: Span {
                        end: span.start + name.len(),
                        ..span
                    },
                };
                let span = Span {
                    start: span.end - value.len(),
                    ..span
                };
                let value = Value::Text(value.to_owned());
                Value::Map(vec![(key, Node { value, span })])
            }
            None => value,
        },
        _ => value,
    };
    Node { value, span }
}

/// Not derived: texts may contain secrets.
impl fmt::Debug for Layers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Layers").finish_non_exhaustive()
    }
}

impl Origins {
    /// Where the value of a key comes from, as in `feature.fs.mode`.
    pub fn of(&self, key: &str) -> &Origin {
        self.0.get(key).unwrap_or(&Origin::Default)
    }

    /// Notes that a bundle has added to the value of a key.
    pub(crate) fn add(&mut self, key: &str, bundle: &'static str) {
        self.1.entry(key.to_owned()).or_default().push(bundle);
    }

    /// Notes that a key has the only value that is useful without a target.
    pub(crate) fn set_without_target(&mut self, key: &str) {
        self.0.insert(key.to_owned(), Origin::NoTarget);
    }

    /// The bundles that have added to the value of a key.
    pub fn added(&self, key: &str) -> &[&'static str] {
        self.1.get(key).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn added_to_maps(&self) -> impl Iterator<Item = (&str, &[&'static str])> {
        self.1
            .iter()
            .map(|(key, bundles)| (key.as_str(), bundles.as_slice()))
    }

    /// The keys that were set explicitly.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.0.iter().map(|(key, origin)| (key.as_str(), origin))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File(Location {
                source,
                line,
                column,
            }) => write!(formatter, "{source}:{line}:{column}"),
            Self::Variable(name) | Self::Flag(name) => formatter.write_str(name),
            Self::NoTarget => formatter.write_str("the session has no target"),
        }
    }
}

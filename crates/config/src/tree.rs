//! A config text as a tree in which every value has its span.
//!
//! All three formats are parsed to the same tree, so that later steps are written once, and every problem can be shown at
//! its location.

mod deserialize;
mod json;
mod toml;
mod yaml;

use crate::format::Format;
use crate::problem::ProblemKind;

pub(crate) use deserialize::deserialize;

/// How many bytes a file may have. A longer file is no config file, and is not parsed.
const MAX_LENGTH: usize = 1 << 20;

/// How deep maps and lists may be nested. Real files stay under ten; the limit keeps recursion off the end of the stack.
const MAX_DEPTH: usize = 64;

/// How many values a file may have. YAML aliases can multiply a few lines into billions of values.
const MAX_VALUES: usize = 100_000;

/// A range of bytes in one of the sources, see [`crate::source::Sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) span: Span,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Boolean(bool),
    /// As it is written: some keys take any text, where `1.10` must not become `1.1`.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, and with keys that are set twice.
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) span: Span,
}

/// A syntax error.
#[derive(Debug)]
pub(crate) struct ParseProblem {
    pub(crate) kind: ProblemKind,
    pub(crate) span: Span,
}

/// Parses a text. The parsed part is returned together with the problems, so that syntax errors and invalid keys are reported
/// together.
pub(crate) fn parse(
    source: usize,
    text: &str,
    format: Format,
) -> (Option<Node>, Vec<ParseProblem>) {
    if text.len() > MAX_LENGTH {
        let kind = ProblemKind::TooLong {
            max_length: MAX_LENGTH,
        };
        let span = Span::new(source, 0, 0);
        return (None, vec![ParseProblem { kind, span }]);
    }
    match format {
        Format::Json => json::parse(source, text),
        Format::Yaml => yaml::parse(source, text),
        Format::Toml => toml::parse(source, text),
    }
}

impl Span {
    fn new(source: usize, start: usize, end: usize) -> Self {
        Self { source, start, end }
    }
}

impl Node {
    /// The name of this kind of value in messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Boolean(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

impl ParseProblem {
    fn syntax(format: Format, message: impl Into<String>, span: Span) -> Self {
        let message = message.into();
        Self {
            kind: ProblemKind::Syntax {
                format,
                message,
                template: false,
            },
            span,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as JSON-like text, with the source text of each scalar's span after it.
    fn shown(text: &str, node: &Node) -> String {
        let at = |span: Span| text.get(span.start..span.end).unwrap_or("?").to_owned();
        match &node.value {
            Value::Null => "null".to_owned(),
            Value::Boolean(value) => format!("{value}"),
            Value::Number(value) => format!("#{value}"),
            Value::Text(value) => format!("'{value}'@<{}>", at(node.span)),
            Value::List(items) => {
                let items: Vec<_> = items.iter().map(|item| shown(text, item)).collect();
                format!("[{}]", items.join(" "))
            }
            Value::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| {
                        format!("{}@<{}>={}", key.text, at(key.span), shown(text, value))
                    })
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
        }
    }

    fn check(format: Format, text: &str, expected: &str) {
        let (node, problems) = parse(0, text, format);
        assert!(problems.is_empty(), "{text}: {problems:?}");
        assert_eq!(shown(text, &node.unwrap()), expected, "{text}");
    }

    #[test]
    fn json_is_parsed_to_a_tree_with_spans() {
        check(Format::Json, "", "null");
        check(
            Format::Json,
            r#"{"a": "x", "b": [1, true, null], /* why */ "c": {},}"#,
            r#"{a@<"a">='x'@<"x"> b@<"b">=[#1 true null] c@<"c">={}}"#,
        );
        check(Format::Json, r#"{"ä": "é"}"#, r#"{ä@<"ä">='é'@<"é">}"#);
    }

    #[test]
    fn yaml_is_parsed_to_a_tree_with_spans() {
        check(Format::Yaml, "", "null");
        check(Format::Yaml, "# nothing\n", "null");
        check(
            Format::Yaml,
            "a: x\nb: [1.10, true, ~]\nc: {}\n'd': \"yes\"\ne: yes\n",
            r#"{a@<a>='x'@<x> b@<b>=[#1.10 true null] c@<c>={} d@<'d'>='yes'@<"yes"> e@<e>='yes'@<yes>}"#,
        );
        check(
            Format::Yaml,
            "one: &x {k: v}\ntwo: *x\n",
            "{one@<one>={k@<k>='v'@<v>} two@<two>={k@<k>='v'@<v>}}",
        );
        check(Format::Yaml, "ä: é\n", "{ä@<ä>='é'@<é>}");
        check(Format::Yaml, "a: !!str 5\n", "{a@<a>='5'@<5>}");
    }

    #[test]
    fn toml_is_parsed_to_a_tree_with_spans() {
        check(Format::Toml, "", "{}");
        check(
            Format::Toml,
            "z = 'x'\nb = [1, true]\n[c.d]\ne = \"é\"\n",
            r#"{z@<z>='x'@<'x'> b@<b>=[#1 true] c@<c>={d@<d>={e@<e>='é'@<"é">}}}"#,
        );
    }

    #[test]
    fn syntax_errors_have_spans_and_depth_is_limited() {
        for (format, text) in [
            (Format::Json, "{\"a\": }"),
            (Format::Json, "{"),
            (Format::Yaml, "a: [1"),
            (Format::Yaml, "a: 1\n b: 2\n"),
            (Format::Yaml, "---\na: 1\n---\nb: 2\n"),
            (Format::Yaml, "? [a]\n: b\n"),
            (Format::Yaml, "a: *missing\n"),
            (Format::Toml, "a = \nb = 1\n"),
        ] {
            let (_, problems) = parse(0, text, format);
            assert!(!problems.is_empty(), "{format}: {text}");
            for problem in problems {
                assert!(problem.span.end <= text.len(), "{format}: {problem:?}");
            }
        }
        for format in Format::ALL {
            for opening in ["[", "{\"a\":", "{a: ", "- ", "a = [", "a.", "[[", "? "] {
                // Some of these are valid text in one of the formats. None may overflow the stack or take long.
                parse(0, &opening.repeat(20_000), format);
            }
        }
    }

    #[test]
    fn the_expansion_of_aliases_is_limited() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let aliases = vec![format!("*a{before}"); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let (_, problems) = parse(0, &text, Format::Yaml);
        assert!(matches!(
            problems[0].kind,
            ProblemKind::TooManyValues { .. }
        ));
    }
}

//! TOML. Its parser continues after an error, so several can be reported at once.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Key, MAX_DEPTH, Node, ParseProblem, Span, Value};
use crate::format::Format;
use crate::problem::ProblemKind;

pub(super) fn parse(source: usize, text: &str) -> (Option<Node>, Vec<ParseProblem>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let problems: Vec<_> = errors
        .iter()
        .map(|error| {
            let range = error.span().unwrap_or(0..0);
            let span = Span::new(source, range.start, range.end);
            ParseProblem::syntax(Format::Toml, error.message(), span)
        })
        .collect();
    if !problems.is_empty() {
        return (None, problems);
    }
    let span = Span::new(source, 0, text.len());
    match convert_table(source, table.into_inner(), span, 0) {
        Ok(node) => (Some(node), problems),
        Err(problem) => (None, vec![problem]),
    }
}

fn convert_table(
    source: usize,
    table: DeTable<'_>,
    span: Span,
    depth: usize,
) -> Result<Node, ParseProblem> {
    if depth > MAX_DEPTH {
        let kind = ProblemKind::TooDeep {
            max_depth: MAX_DEPTH,
        };
        return Err(ParseProblem { kind, span });
    }
    let mut entries = Vec::new();
    for (key, value) in table {
        let range = key.span();
        let key = Key {
            text: key.into_inner().into_owned(),
            span: Span::new(source, range.start, range.end),
        };
        entries.push((key, convert(source, value, depth + 1)?));
    }
    // The parser's map is sorted by name; the order of the file decides which of two patterns is tried first.
    entries.sort_by_key(|(key, _)| key.span.start);
    let value = Value::Map(entries);
    Ok(Node { value, span })
}

fn convert(
    source: usize,
    spanned: Spanned<DeValue<'_>>,
    depth: usize,
) -> Result<Node, ParseProblem> {
    let range = spanned.span();
    let span = Span::new(source, range.start, range.end);
    let value = match spanned.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(boolean) => Value::Boolean(boolean),
        DeValue::Datetime(datetime) => Value::Text(datetime.to_string()),
        DeValue::Array(array) => {
            if depth > MAX_DEPTH {
                let kind = ProblemKind::TooDeep {
                    max_depth: MAX_DEPTH,
                };
                return Err(ParseProblem { kind, span });
            }
            Value::List(
                array
                    .into_iter()
                    .map(|item| convert(source, item, depth + 1))
                    .collect::<Result<_, _>>()?,
            )
        }
        DeValue::Table(table) => return convert_table(source, table, span, depth),
    };
    Ok(Node { value, span })
}

//! JSON, with comments and trailing commas.

use jsonc_parser::ast::{self, ObjectPropName};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};

use super::{Key, MAX_DEPTH, Node, ParseProblem, Span, Value};
use crate::format::Format;
use crate::problem::ProblemKind;

pub(super) fn parse(source: usize, text: &str) -> (Option<Node>, Vec<ParseProblem>) {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let collect = CollectOptions {
        comments: CommentCollectionStrategy::Off,
        tokens: false,
    };
    match parse_to_ast(text, &collect, &options) {
        Ok(result) => match result.value {
            Some(value) => match convert(source, value, 0) {
                Ok(node) => (Some(node), Vec::new()),
                Err(problem) => (None, vec![problem]),
            },
            None => {
                let span = Span::new(source, 0, text.len());
                let value = Value::Null;
                (Some(Node { value, span }), Vec::new())
            }
        },
        Err(error) => {
            let range = error.range();
            let span = Span::new(source, range.start, range.end);
            let message = lower_first(&error.kind().to_string());
            (
                None,
                vec![ParseProblem::syntax(Format::Json, message, span)],
            )
        }
    }
}

fn convert(source: usize, value: ast::Value<'_>, depth: usize) -> Result<Node, ParseProblem> {
    let range = value.range();
    let span = Span::new(source, range.start, range.end);
    if depth > MAX_DEPTH {
        let kind = ProblemKind::TooDeep {
            max_depth: MAX_DEPTH,
        };
        return Err(ParseProblem { kind, span });
    }
    let value = match value {
        ast::Value::StringLit(text) => Value::Text(text.value.into_owned()),
        ast::Value::NumberLit(number) => Value::Number(number.value.to_owned()),
        ast::Value::BooleanLit(boolean) => Value::Boolean(boolean.value),
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::Array(array) => Value::List(
            array
                .elements
                .into_iter()
                .map(|element| convert(source, element, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        ast::Value::Object(object) => Value::Map(
            object
                .properties
                .into_iter()
                .map(|property| {
                    Ok((
                        key(source, property.name),
                        convert(source, property.value, depth + 1)?,
                    ))
                })
                .collect::<Result<_, _>>()?,
        ),
    };
    Ok(Node { value, span })
}

fn key(source: usize, name: ObjectPropName<'_>) -> Key {
    let range = name.range();
    Key {
        text: name.into_string(),
        span: Span::new(source, range.start, range.end),
    }
}

fn lower_first(message: &str) -> String {
    let mut characters = message.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => String::new(),
    }
}

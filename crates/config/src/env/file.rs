//! The text of an env file: lines of the form `NAME=value`.
//!
//! A value may be quoted. In double quotes `\n`, `\r`, `\t`, `\\`, `\"` and `\$` are escapes, in single quotes nothing is,
//! and both may go over several lines. Without quotes a value ends at ` #` or at the end of the line. Nothing is
//! substituted.

use thiserror::Error;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvFile(Vec<(Vec<u8>, Vec<u8>)>);

/// Why a text is not an env file. Values are never part of the message, since they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvFileError {
    #[error(
        "line {line}: there is no `=`; write NAME=value, or begin the line with # for a comment"
    )]
    NoEquals { line: usize },
    #[error("line {line}: there is no name before the `=`; write NAME=value")]
    NoName { line: usize },
    #[error(
        "line {line}: the name contains a space; write NAME=value without spaces around the name"
    )]
    SpaceInName { line: usize },
    #[error("line {line}: the quote is never closed; add the same quote at the end of the value")]
    OpenQuote { line: usize },
    #[error("line {line}: there is something after the closing quote; quote the whole value")]
    AfterQuote { line: usize },
}

impl EnvFile {
    /// Parses all variables, in the order of the file, or returns all problems.
    pub fn parse(text: &str) -> Result<Self, Vec<EnvFileError>> {
        let mut lines = Lines {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            line: 0,
        };
        let mut entries = Vec::new();
        let mut errors = Vec::new();
        while let Some(line) = lines.next() {
            match parse_line(line, &mut lines) {
                Ok(Some((name, value))) => entries.push((name.into_bytes(), value.into_bytes())),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            Ok(Self(entries))
        } else {
            Err(errors)
        }
    }

    pub(super) fn entries(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.0
    }
}

impl std::fmt::Debug for EnvFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "EnvFile({} variables)", self.0.len())
    }
}

struct Lines<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Option<&'t str> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += 1;
        Some(line.strip_suffix('\r').unwrap_or(line))
    }
}

fn parse_line<'t>(
    line: &'t str,
    lines: &mut Lines<'t>,
) -> Result<Option<(String, String)>, EnvFileError> {
    let number = lines.line;
    let content = line.trim_start();
    if content.is_empty() || content.starts_with('#') {
        return Ok(None);
    }
    let content = match content.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        _ => content,
    };
    let Some((name, value)) = content.split_once('=') else {
        return Err(EnvFileError::NoEquals { line: number });
    };
    let name = name.trim_end();
    if name.is_empty() {
        return Err(EnvFileError::NoName { line: number });
    }
    if name.contains(char::is_whitespace) {
        return Err(EnvFileError::SpaceInName { line: number });
    }
    let value = value.trim_start();
    let value = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => quoted(&value[1..], quote, lines)?,
        _ => unquoted(value).to_owned(),
    };
    Ok(Some((name.to_owned(), value)))
}

fn unquoted(value: &str) -> &str {
    let comment = value
        .char_indices()
        .zip([' '].into_iter().chain(value.chars()))
        .find(|((_, character), before)| *character == '#' && before.is_whitespace())
        .map_or(value.len(), |((index, _), _)| index);
    value[..comment].trim_end()
}

fn quoted<'t>(
    first_line: &'t str,
    quote: char,
    lines: &mut Lines<'t>,
) -> Result<String, EnvFileError> {
    let started = lines.line;
    let mut value = String::new();
    let mut line = first_line;
    loop {
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' if quote == '"' => match characters.next() {
                    Some('n') => value.push('\n'),
                    Some('r') => value.push('\r'),
                    Some('t') => value.push('\t'),
                    Some(escaped @ ('\\' | '"' | '$')) => value.push(escaped),
                    // An unknown escape stands for itself, as in a Windows path.
                    other => value.extend(['\\'].into_iter().chain(other)),
                },
                character if character == quote => {
                    let rest = characters.as_str().trim_start();
                    return if rest.is_empty() || rest.starts_with('#') {
                        Ok(value)
                    } else {
                        Err(EnvFileError::AfterQuote { line: lines.line })
                    };
                }
                other => value.push(other),
            }
        }
        value.push('\n');
        line = lines
            .next()
            .ok_or(EnvFileError::OpenQuote { line: started })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        for (text, value) in [
            ("A=b", "b"),
            ("A=", ""),
            ("A= b c ", "b c"),
            ("  A =b", "b"),
            ("export A=b", "b"),
            ("A=b # comment", "b"),
            ("A=b#c", "b#c"),
            ("A=#c", ""),
            ("A=b=c", "b=c"),
            ("A='b # c'", "b # c"),
            ("A='b\\n$x'", "b\\n$x"),
            ("A=\"b\\n\\\"c\\\"\"  # comment", "b\n\"c\""),
            ("A=\"C:\\new\"", "C:\new"),
            ("A=\"C:\\users\"", "C:\\users"),
            ("A=\"one\r\ntwo\"", "one\ntwo"),
            ("A='é'", "é"),
            ("A=$HOME", "$HOME"),
            ("\u{feff}A=b\r\n", "b"),
            ("# comment\n\nA=b\n", "b"),
        ] {
            let file = EnvFile::parse(text).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
            let expected = [(b"A".to_vec(), value.as_bytes().to_vec())];
            assert_eq!(file.entries(), expected, "{text}");
        }
    }

    #[test]
    fn all_problems_are_reported_with_their_lines() {
        let text = "A=1\nB\n=x\nC D=x\nE='x'y\nF=\"never\nclosed";
        assert_eq!(
            EnvFile::parse(text),
            Err(vec![
                EnvFileError::NoEquals { line: 2 },
                EnvFileError::NoName { line: 3 },
                EnvFileError::SpaceInName { line: 4 },
                EnvFileError::AfterQuote { line: 5 },
                EnvFileError::OpenQuote { line: 6 },
            ])
        );
    }

    #[test]
    fn values_are_not_shown() {
        let file = EnvFile::parse("PASSWORD=hunter2").unwrap();
        assert_eq!(format!("{file:?}"), "EnvFile(1 variables)");
    }
}

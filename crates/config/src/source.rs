//! The source texts of settings: files, variables, flags. Problems in all of them are shown in the same way.

use crate::tree::Span;

/// The layer of a text. Later ones have precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    File,
    Variable,
    Flag,
}

#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) rank: Rank,
    /// The file's name, or that of the variable or the flag.
    pub(crate) name: String,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Sources(Vec<Source>);

/// A location in a source, for display: lines and columns are counted from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The name of the file, or `environment`, or `command line`.
    pub source: String,
    pub line: usize,
    pub column: usize,
}

impl Sources {
    /// Returns the number of the new source.
    pub(crate) fn add(&mut self, rank: Rank, name: &str, text: &str) -> usize {
        // A byte order mark is not part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let name = name.to_owned();
        self.0.push(Source { rank, name, text });
        self.0.len() - 1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.iter()
    }

    pub(crate) fn get(&self, source: usize) -> Option<&Source> {
        self.0.get(source)
    }

    /// Clamps a span to the text and to character boundaries, since a wrong one must not crash the report.
    pub(crate) fn range(&self, span: Span) -> std::ops::Range<usize> {
        let text = self.get(span.source).map_or("", |source| &source.text);
        let start = text.floor_char_boundary(span.start);
        let end = text.ceil_char_boundary(span.end).max(start);
        start..end
    }

    pub(crate) fn locate(&self, span: Span) -> Location {
        let Some(source) = self.get(span.source) else {
            return Location {
                source: String::new(),
                line: 1,
                column: 1,
            };
        };
        let before = &source.text[..self.range(span).start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Location {
            source: source.title().to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl Source {
    pub(crate) fn title(&self) -> &str {
        match self.rank {
            Rank::File => &self.name,
            Rank::Variable => "environment",
            Rank::Flag => "command line",
        }
    }
}

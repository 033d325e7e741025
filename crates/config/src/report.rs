//! Shows all problems of a configuration.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::format::Format;
use crate::layers::Layers;
use crate::problem::{Problem, Severity};
use crate::read::{Findings, FoundProblem};
use crate::source::Sources;
use crate::tree::Span;

/// Users do not read more, and each one requires a scan of the whole text.
const MAX_SHOWN: usize = 50;

/// Limits the work for a text with very many problems.
pub(crate) const MAX_KEPT: usize = 1000;

/// All problems of a configuration, in the order of the text.
#[derive(Clone)]
pub struct Report {
    /// The texts with hidden secrets.
    sources: Vec<(String, String)>,
    /// The first [`MAX_KEPT`].
    problems: Vec<Problem>,
    errors: usize,
    warnings: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Colored,
}

/// Checks the text of a config file. `name` is its name in the report.
pub fn verify(name: &str, text: &str, format: Format) -> Report {
    Layers::new().file(name, text, format).into_report()
}

impl Report {
    pub(crate) fn new(sources: &Sources, findings: Findings) -> Self {
        let mut found = findings.problems;
        found.sort_by_key(|found| (found.span.source, found.span.start));
        let count = |severity: Severity| {
            let of_severity = |found: &&FoundProblem| found.kind.severity() == severity;
            found.iter().filter(of_severity).count()
        };
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let problems: Vec<Problem> = found
            .into_iter()
            .take(MAX_KEPT)
            .map(|found| Problem {
                kind: found.kind,
                key: found.key,
                location: sources.locate(found.span),
                source: found.span.source,
                range: sources.range(found.span),
            })
            .collect();
        let hidden = hide(sources, &findings.secrets);
        Self {
            sources: hidden,
            problems,
            errors,
            warnings,
        }
    }

    /// In the order of the text. If there are very many, only the first of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Each problem with its line, and a summary as the last line. Empty if there are no problems.
    pub fn render(&self, style: Style) -> String {
        let renderer = match style {
            Style::Plain => Renderer::plain(),
            Style::Colored => Renderer::styled(),
        };
        let mut text = String::new();
        for problem in self.problems.iter().take(MAX_SHOWN) {
            text.push_str(&self.render_problem(problem, &renderer));
            text.push_str("\n\n");
        }
        let more = (self.errors + self.warnings).saturating_sub(MAX_SHOWN);
        if more > 0 {
            text.push_str(&format!("and {more} more\n\n"));
        }
        if !self.problems.is_empty() {
            text.push_str(&self.summary());
            text.push('\n');
        }
        text
    }

    fn render_problem(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = match problem.severity() {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = level
            .primary_title(problem.kind.to_string())
            .elements(std::iter::empty::<annotate_snippets::Message<'_>>());
        if let Some((name, text)) = self.sources.get(problem.source) {
            // Only the line is passed to the renderer, since it scans all of its input.
            let start = text[..problem.range.start]
                .rfind('\n')
                .map_or(0, |at| at + 1);
            let line = text[start..].lines().next().unwrap_or_default();
            let range = problem.range.start - start..problem.range.end - start;
            let range = range.start.min(line.len())..range.end.min(line.len());
            let annotation = AnnotationKind::Primary.span(range);
            let annotation = if problem.kind.names_its_key() || problem.key.is_empty() {
                annotation
            } else {
                annotation.label(problem.key.as_str())
            };
            let snippet = Snippet::source(line)
                .line_start(problem.location.line)
                .path(name.as_str())
                .annotation(annotation);
            group = group.element(snippet);
        }
        if let Some(allowed) = problem.kind.allowed() {
            group = group.element(Level::NOTE.message(allowed));
        }
        if let Some(hint) = problem.kind.hint() {
            group = group.element(Level::HELP.message(hint));
        }
        renderer.render(&[group])
    }

    /// How many problems there are, in one line.
    pub fn summary(&self) -> String {
        let counted = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        };
        let errors = counted(self.errors, "error");
        let warnings = counted(self.warnings, "warning");
        format!("{errors}, {warnings}")
    }
}

/// The texts with asterisks for secrets, one for each byte, so that all spans stay valid.
fn hide(sources: &Sources, secrets: &[Span]) -> Vec<(String, String)> {
    let mut texts: Vec<Vec<u8>> = sources
        .iter()
        .map(|source| source.text.clone().into_bytes())
        .collect();
    for secret in secrets {
        if let Some(text) = texts.get_mut(secret.source) {
            for byte in &mut text[sources.range(*secret)] {
                if *byte != b'\n' {
                    *byte = b'*';
                }
            }
        }
    }
    let titles = sources.iter().map(|source| source.title().to_owned());
    // Whole characters were replaced, so nothing is lossy.
    let texts = texts
        .into_iter()
        .map(|text| String::from_utf8_lossy(&text).into_owned());
    titles.zip(texts).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.render(Style::Plain))
    }
}

/// Not derived: the texts can be long, and may contain secrets.
impl fmt::Debug for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Report")
            .field("problems", &self.problems)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Report {}

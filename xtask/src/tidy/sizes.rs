//! Reports long files and long functions, without failing.

use crate::workspace::Source;

const LONG_FILE: usize = 500;
const LONG_FUNCTION: usize = 80;

/// Long files and functions, the longest first. Tests at the end of a file do not count.
pub(crate) fn report(sources: &[Source]) -> Vec<String> {
    let mut long: Vec<(usize, String)> = Vec::new();
    for source in sources.iter().filter(|source| source.has_extension("rs")) {
        let path = source.path.display();
        let lines: Vec<&str> = source
            .text
            .lines()
            .take_while(|line| *line != "#[cfg(test)]")
            .collect();
        if lines.len() > LONG_FILE {
            long.push((lines.len(), format!("{path}:1: {} lines", lines.len())));
        }
        for function in functions(&lines).filter(|function| function.length > LONG_FUNCTION) {
            let Function { name, line, length } = function;
            long.push((
                length,
                format!("{path}:{line}: the function {name} has {length} lines"),
            ));
        }
    }
    long.sort_by(|left, right| right.cmp(left));
    long.into_iter().map(|(_, line)| line).collect()
}

struct Function<'source> {
    name: &'source str,
    /// Counted from 1.
    line: usize,
    length: usize,
}

/// Finds functions by their layout, which rustfmt guarantees: the closing brace stands alone under the first word.
fn functions<'source>(lines: &'source [&'source str]) -> impl Iterator<Item = Function<'source>> {
    lines.iter().enumerate().filter_map(|(index, line)| {
        let name = function_name(line)?;
        let indentation = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indentation}}}");
        let body = lines[index..].iter().position(|later| **later == end)?;
        // A declaration without a body ends with a semicolon before any brace opens.
        let declaration = lines[index..].iter().position(|later| later.ends_with(';'));
        let opening = lines[index..]
            .iter()
            .position(|later| later.ends_with('{'))?;
        (declaration.is_none_or(|declaration| opening < declaration) && opening < body).then_some(
            Function {
                name,
                line: index + 1,
                length: body + 1,
            },
        )
    })
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        matches!(
            word,
            "const" | "async" | "unsafe" | "extern" | "\"C\"" | "pub" | "pub(crate)" | "pub(super)"
        )
    };
    before.split_whitespace().all(is_qualifier).then_some(())?;
    after.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::super::test_support::source;
    use super::*;

    #[test]
    fn long_files_and_functions_are_reported() {
        let body = "        step();\n".repeat(85);
        let long_function =
            format!("    pub(crate) async fn busy(\n        &self,\n    ) {{\n{body}    }}\n");
        let text = format!(
            "trait T {{\n    fn declared(&self);\n}}\nimpl X {{\n{long_function}}}\nfn short() {{\n}}\n"
        );
        assert_eq!(
            report(&[
                source("a.rs", &text),
                source("b.rs", &"//\n".repeat(501)),
                source("c.go", &text)
            ]),
            [
                "b.rs:1: 501 lines",
                "a.rs:5: the function busy has 89 lines"
            ]
        );
    }

    #[test]
    fn tests_do_not_count() {
        let text = format!(
            "fn a() {{\n}}\n\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            "//\n".repeat(600)
        );
        assert_eq!(report(&[source("a.rs", &text)]), Vec::<String>::new());
    }
}

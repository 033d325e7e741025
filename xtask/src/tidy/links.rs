//! Links between the repository's Markdown pages are valid: the file or folder exists, and so does the heading.
//! External links are not followed, since a check must not depend on the network.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::Finding;
use crate::workspace::Source;

pub(crate) fn check(sources: &[Source], paths: &[PathBuf]) -> Vec<Finding> {
    let existing = with_folders(paths);
    sources
        .iter()
        .filter(|source| source.has_extension("md"))
        .flat_map(|source| {
            links(&source.text)
                .into_iter()
                .filter_map(|(line, target)| {
                    let problem = problem(source, &target, sources, &existing)?;
                    Some(Finding::new(&source.path, line, problem))
                })
        })
        .collect()
}

fn problem(
    source: &Source,
    target: &str,
    sources: &[Source],
    existing: &BTreeSet<PathBuf>,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target
        .split_once('#')
        .map_or((target, None), |(file, heading)| (file, Some(heading)));
    let Some(path) = resolve(&source.path, file) else {
        return Some(format!("the link {target} leads out of the repository"));
    };
    if !existing.contains(&path) {
        return Some(format!(
            "the link {target} leads to {}, which does not exist",
            path.display()
        ));
    }
    let page = sources
        .iter()
        .find(|page| page.path == path && page.has_extension("md"))?;
    let heading = heading?;
    (!anchors(&page.text).contains(heading)).then(|| {
        format!(
            "the link {target} leads to a heading that {} does not have",
            path.display()
        )
    })
}

/// The target's path from the top of the repository. `None` when it is outside.
fn resolve(page: &Path, file: &str) -> Option<PathBuf> {
    let joined = match file.strip_prefix('/') {
        _ if file.is_empty() => page.to_path_buf(),
        Some(from_top) => PathBuf::from(from_top),
        None => page.parent()?.join(file),
    };
    let mut resolved = PathBuf::new();
    for component in joined.components() {
        match component {
            Component::ParentDir if !resolved.pop() => return None,
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    Some(resolved)
}

fn with_folders(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    paths
        .iter()
        .flat_map(|path| path.ancestors().map(Path::to_path_buf))
        .collect()
}

/// Each link's line and target: `[text](target)`, `![text](target)` and `[name]: target`, outside of code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in lines_outside_code(text) {
        let prose: String = line
            .split('`')
            .step_by(2)
            .collect::<Vec<_>>()
            .join("`code`");
        let inline = prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', ' ']).next());
        let definition = prose
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
            .map(|(_, target)| target.trim());
        links.extend(
            inline
                .chain(definition)
                .map(|target| (number, target.to_owned())),
        );
    }
    links
}

/// The names by which a page's headings can be linked to.
fn anchors(text: &str) -> BTreeSet<String> {
    lines_outside_code(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|character| character.is_alphanumeric() || " -_".contains(*character))
                .map(|character| if character == ' ' { '-' } else { character })
                .collect()
        })
        .collect()
}

fn lines_outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let sources = [
            source("docs/page.md", page),
            source(
                "README.md",
                "# Standin\n## What it is, and for whom\n```sh\n# not a heading\n```\n",
            ),
        ];
        let paths = ["docs/page.md", "README.md", "crates/lab/src/lib.rs"].map(PathBuf::from);
        shown(&check(&sources, &paths))
    }

    #[test]
    fn valid_links_are_accepted() {
        for page in [
            "[home](../README.md) and [a folder](/crates/lab)",
            "[home](../README.md#what-it-is-and-for-whom)",
            "# Here\n[same page](#here)",
            "[elsewhere](https://example.com/not-there)",
            "`[code](not-there.md)`",
            "```\n[code](not-there.md)\n```",
            "[name][reference]\n\n[reference]: ../README.md",
        ] {
            assert_eq!(findings(page), Vec::<String>::new(), "{page}");
        }
    }

    #[test]
    fn broken_links_are_found() {
        for (page, message) in [
            (
                "[x](missing.md)",
                "1: the link missing.md leads to docs/missing.md, which does not exist",
            ),
            (
                "one\ntwo ![x](../a.png)",
                "2: the link ../a.png leads to a.png, which does not exist",
            ),
            (
                "[x](../../out.md)",
                "1: the link ../../out.md leads out of the repository",
            ),
            (
                "[x]: gone.md",
                "1: the link gone.md leads to docs/gone.md, which does not exist",
            ),
            (
                "[x](../README.md#not-a-heading)",
                "1: the link ../README.md#not-a-heading leads to a heading that README.md does not have",
            ),
        ] {
            assert_eq!(findings(page), [format!("docs/page.md:{message}")]);
        }
    }
}

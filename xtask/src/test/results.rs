//! What is known of each test: read from what a libtest program prints.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Ignored,
}

/// One test that was run, or was left out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TestResult {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) elapsed: Option<Duration>,
    /// What it waited for the longest, and for how long altogether.
    pub(crate) waited: Option<String>,
}

/// The results in the output of one or more libtest programs.
///
/// Each test has a line `test NAME ... ok`, with `<0.123s>` at its end where the program reports times. If a test runs alone
/// and prints something itself, that stands between the name and the verdict, which then has a line of its own. A line
/// `timing: NAME total=1.5s waited=0.9s for=pods` adds what libtest does not know.
pub(crate) fn read(output: &str) -> Vec<TestResult> {
    let mut results = Vec::new();
    let mut running = None;
    for line in output.lines() {
        match (started_test(line), running) {
            (Some((name, rest)), _) => {
                let result = test_result(name, rest);
                running = result.is_none().then_some(name);
                results.extend(result);
            }
            (None, Some(name)) if ["ok", "FAILED"].contains(&line) => {
                results.extend(test_result(name, line));
                running = None;
            }
            (None, _) => {}
        }
    }
    for (name, elapsed, waited) in output.lines().filter_map(timing_line) {
        if let Some(result) = results.iter_mut().find(|result| result.name == name) {
            result.elapsed = result.elapsed.or(elapsed);
            result.waited = waited;
        }
    }
    results
}

/// `test NAME ... REST`. A test that must panic has ` - should panic` behind its name.
fn started_test(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    Some((name.trim_end(), rest))
}

/// `ok`, `ok <0.123s>`, `FAILED`, `ignored, needs root`.
fn test_result(name: &str, text: &str) -> Option<TestResult> {
    let (word, rest) = text.split_at(text.find([' ', ',']).unwrap_or(text.len()));
    let verdict = match word {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    let elapsed = rest
        .split_once('<')
        .and_then(|(_, time)| seconds(time.split_once('>')?.0));
    Some(TestResult {
        name: name.to_owned(),
        verdict,
        elapsed,
        waited: None,
    })
}

fn timing_line(line: &str) -> Option<(&str, Option<Duration>, Option<String>)> {
    let (name, fields) = line.strip_prefix("timing: ")?.split_once(' ')?;
    let (total, rest) = fields.strip_prefix("total=")?.split_once(' ')?;
    let (waited, what) = rest.strip_prefix("waited=")?.split_once(" for=")?;
    let waited = (!what.is_empty()).then(|| format!("{waited}: {what}"));
    Some((name, seconds(total), waited))
}

/// `0.123s`
fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_verdict_and_a_time() {
        let output = "
running 4 tests
test files::opens ... ok <1.500s>
test files::fails ... FAILED <0.010s>
test panics - should panic ... ok
test as_root ... ignored, needs root
test alone ... [   0.09 s] network created
ok, said the test
FAILED
test odd ... what is this
timing: panics total=2.25s waited=2.0s for=pods of the shop
test result: FAILED. 2 passed; 1 failed; 1 ignored
";
        let shown: Vec<String> = read(output)
            .iter()
            .map(|test| {
                format!(
                    "{} {:?} {:?} {:?}",
                    test.name, test.verdict, test.elapsed, test.waited
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "files::opens Passed Some(1.5s) None",
                "files::fails Failed Some(10ms) None",
                "panics Passed Some(2.25s) Some(\"2.0s: pods of the shop\")",
                "as_root Ignored None None",
                "alone Failed None None",
            ]
        );
    }
}

use std::fs;
use std::path::{Path, PathBuf};

use config::{Format, Layers, Style, verify};

/// Each config file in `tests/golden` has its expected report in a file with the suffix `.report`.
#[test]
fn reports_match_the_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| Format::of_path(path).is_some())
        .collect();
    files.sort();
    assert_eq!(files.len(), 8);
    let mut different = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let format = Format::of_path(&file).unwrap();
        let report = verify(name, &text, format).render(Style::Plain);
        let golden = folder.join(format!("{name}.report"));
        if report != fs::read_to_string(&golden).unwrap_or_default() {
            let actual = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.report"));
            fs::write(&actual, &report).unwrap();
            different.push(format!("cp {} {}", actual.display(), golden.display()));
        }
    }
    assert!(
        different.is_empty(),
        "reports have changed. If they are right:\n{}",
        different.join("\n")
    );
}

#[test]
fn variables_and_flags_are_shown_like_files() {
    let report = Layers::new()
        .variables([("STANDIN_FS_MODE", "raed")], &[])
        .flag("--target", "target.path", "pods/x")
        .resolve()
        .unwrap_err();
    let expected = "\
error: unknown value `raed`
 --> environment:1:17
  |
1 | STANDIN_FS_MODE=raed
  |                 ^^^^ feature.fs.mode
  |
  = note: allowed here: `local`, `localwithoverrides`, `read`, `write`
  = help: did you mean `read`?

error: not a target: there are no targets of the kind `pods`
 --> command line:1:10
  |
1 | --target pods/x
  |          ^^^^^^ target.path
  |
  = note: a target is `process/<pid>`, `container/<name>`, `<kind>/<name>`, `<kind>/<name>/container/<name>` or `targetless`
  = help: did you mean `pod/x`?

2 errors, 0 warnings
";
    assert_eq!(report.render(Style::Plain), expected);
}

#[test]
fn color_changes_only_escape_sequences() {
    let report = verify("x.json", "{\"evn\": 1}", Format::Json);
    let colored = report.render(Style::Colored);
    assert!(colored.contains("\u{1b}["));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_eq!(plain, report.render(Style::Plain));
}

#[test]
fn an_oversized_file_is_not_parsed() {
    let text = "#".repeat(2 << 20);
    for format in Format::ALL {
        let report = verify("x", &text, format);
        assert_eq!(report.summary(), "1 error, 0 warnings");
    }
}

#[test]
fn the_size_of_a_report_is_limited() {
    let keys: Vec<String> = (0..2000)
        .map(|number| format!("unknown{number}: 1"))
        .collect();
    let report = verify("x.yaml", &keys.join("\n"), Format::Yaml);
    assert_eq!(report.problems().len(), 1000);
    let text = report.render(Style::Plain);
    assert!(
        text.ends_with("and 1950 more\n\n2000 errors, 0 warnings\n"),
        "{}",
        &text[text.len() - 80..]
    );
}

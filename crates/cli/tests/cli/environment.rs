//! Environment variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::support::{ProcessOutput, Standin, Target};

#[test]
fn arbitrary_bytes_and_thousands_of_variables_are_passed() {
    let mut variables: Vec<(OsString, OsString)> = (0..3000)
        .map(|number| {
            (
                format!("MANY_{number}").into(),
                format!("value {number}").into(),
            )
        })
        .collect();
    let invalid = OsStr::from_bytes(b"INVALID_\xff\xfe");
    variables.push((
        invalid.to_owned(),
        OsStr::from_bytes(b"\x80\n=\xc3(").to_owned(),
    ));
    variables.push(("LONG".into(), "x".repeat(120 * 1024).into()));
    variables.push(("EMPTY".into(), "".into()));
    let borrowed: Vec<(&OsStr, &OsStr)> = variables
        .iter()
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
        .collect();
    let target = Target::with(&borrowed);
    let standin = Standin::new();
    let output = standin
        .command(["exec", "-t", &target.name(), "--", "env", "-0"])
        .output()
        .unwrap();
    let found: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    for (name, value) in variables {
        let expected = [name.as_bytes(), b"=", value.as_bytes()].concat();
        assert!(found.contains(&expected.as_slice()), "{name:?} is missing");
    }
}

#[test]
fn an_oversized_variable_is_left_out_with_a_warning() {
    let target = Target::new();
    let standin = Standin::new();
    standin.write(
        "huge.env",
        format!("HUGE={}\nFINE=here\n", "secret".repeat(1 << 18)),
    );
    let script = "echo $FINE; echo ${#HUGE}";
    let mut command = standin.session(&target.name(), &["--env-file", "huge.env"], script);
    let ended = ProcessOutput::from(command.output().unwrap());
    ended
        .expect(0)
        .expect_stderr(&["the variable HUGE is left out: with 1572864 bytes"]);
    assert_eq!(ended.stdout, "here\n0\n");
    assert!(!ended.stderr.contains("secret"));
}

#[test]
fn an_environment_that_is_too_large_is_an_error() {
    let target = Target::new();
    let standin = Standin::new();
    let lines: String = (0..100)
        .map(|number| format!("PART_{number}={}\n", "x".repeat(100_000)))
        .collect();
    standin.write("large.env", lines);
    let mut command = standin.session(&target.name(), &["--env-file", "large.env"], "true");
    let ended = ProcessOutput::from(command.output().unwrap());
    ended.expect(126).expect_stderr(&["Argument list too long"]);
}

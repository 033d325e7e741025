//! Unmodified programs in every language, as the stand-in for a process.
//!
//! All make the same calls, and all must get the same results. Outside of a session they get none of these results.

use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::{ProgramOutput, Target, network};
use e2e::{LazyEnvironment, Needs, scenario};
use libtest_mimic::Trial;

use super::support::{cache, programs};

/// The results in a session. A DNS name has two addresses, and each language's library chooses which one to try first.
const TOUR: [(&str, &[&str]); 18] = [
    ("env", &[Target::VARIABLE.1]),
    ("read", &["open all day"]),
    ("secret", &["a secret of the target"]),
    ("list", &["bread,cake,tea"]),
    ("missing", &["ENOENT"]),
    ("create", &["ok"]),
    ("append", &["ok"]),
    ("reread", &["first,second"]),
    ("rename", &["ok"]),
    ("remove", &["ok"]),
    ("hostname", &[network::HOST_NAME]),
    ("dns", &[network::SERVER]),
    ("dns6", &[network::SERVER6, "fd77:0:0:0:0:0:0:80"]),
    ("http", &["hello 10.77.0.2", "hello fd77::2"]),
    ("udp", &["ping"]),
    ("udp-unconnected", &["ping"]),
    ("udp6", &["ping"]),
    ("udp6-unconnected", &["ping"]),
];

/// Bash has no unconnected sockets.
const NOT_IN_BASH: [&str; 2] = ["udp-unconnected", "udp6-unconnected"];

/// Results that are the same without a session: the file does not exist anywhere.
const SAME_OUTSIDE: [&str; 1] = ["missing"];

/// Finds or compiles a program.
type FindProgram = fn() -> Result<Program>;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    let kinds: [(&'static str, FindProgram); 12] = [
        ("a_static_go_program_stands_in", || {
            compiled(Recipe::GO_STATIC)
        }),
        ("a_go_program_with_cgo_stands_in", || {
            Ok(compiled(Recipe::GO_CGO)?.variables(&[("GODEBUG", "netdns=cgo")]))
        }),
        ("a_rust_program_stands_in", || compiled(Recipe::RUST)),
        ("a_dynamic_c_program_stands_in", || {
            compiled(Recipe::C_DYNAMIC)
        }),
        ("a_static_c_program_stands_in", || {
            compiled(Recipe::C_STATIC)
        }),
        ("a_musl_program_stands_in", || compiled(Recipe::C_MUSL)),
        ("a_python_program_stands_in", || {
            Ok(Program::script("python3", "programs/python/tour.py"))
        }),
        ("a_node_program_stands_in", || {
            Ok(Program::script("node", "programs/node/tour.mjs"))
        }),
        ("a_java_program_stands_in", java),
        ("a_bash_script_stands_in", || {
            Ok(Program::script("bash", "programs/bash/tour.sh"))
        }),
        ("a_perl_program_stands_in", || {
            Ok(Program::script("perl", "programs/perl/tour.pl"))
        }),
        ("a_tree_of_programs_stands_in", || {
            Ok(Program::script("sh", "programs/tree/tour.sh"))
        }),
    ];
    kinds
        .into_iter()
        .map(|(name, program)| {
            scenario(environment, name, Needs::Machine, async move |_| {
                check(name, program()?)
            })
        })
        .collect()
}

fn compiled(recipe: Recipe) -> Result<Program> {
    Program::compiled(recipe, &cache())
}

fn java() -> Result<Program> {
    let classes = Recipe::JAVA.compile(&cache())?;
    Ok(Program {
        folder: classes.clone(),
        command: ["java".into(), "-cp".into(), classes.into(), "Tour".into()].into(),
        variables: &[],
    })
}

/// Runs the program outside and inside of a session, and checks its results and the files that it left at the target.
fn check(name: &str, program: Program) -> Result<()> {
    let mut program = program.argument(name);
    let is_tree = name == "a_tree_of_programs_stands_in";
    if is_tree {
        program = program.argument(Recipe::GO_STATIC.compile(&cache())?);
    }
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day\n")?;
    for dish in ["tea", "bread", "cake"] {
        target.write(&format!("/etc/shop/menu/{dish}"), dish)?;
    }
    target.write(
        "/run/secrets/standin.test/account/token",
        "a secret of the target\n",
    )?;
    let outside = ProgramOutput::of(program.prepare(&mut outside(&program)))?;
    let inside = ProgramOutput::of(
        program
            .prepare(&mut programs()?.exec(&target, &program.command))
            .env("STANDIN_FS_MODE", "write"),
    )?;
    let mut problems: Vec<String> = TOUR
        .iter()
        .filter(|(key, _)| !(name.contains("bash") && NOT_IN_BASH.contains(key)))
        .filter_map(|(key, expected)| problem(key, expected, &inside, &outside))
        .collect();
    if is_tree {
        for key in ["shell", "python"] {
            problems.extend(problem(key, &["open all day"], &inside, &outside));
        }
    }
    problems.extend(file_problem(&target, name));
    ensure!(
        problems.is_empty() && inside.code == Some(0),
        "{}\n\nin a session it {inside}\nwithout a session it {outside}",
        problems.join("\n")
    );
    Ok(())
}

/// The program without a session. Its network namespace is empty, so that connections fail at once.
fn outside(program: &Program) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--"])
        .args(&program.command)
        .stdin(Stdio::null());
    command
}

fn problem(
    key: &str,
    expected: &[&str],
    inside: &ProgramOutput,
    outside: &ProgramOutput,
) -> Option<String> {
    let value = inside.value(key);
    if !value.is_some_and(|value| expected.contains(&value)) {
        let printed = value.map_or("printed no such line".to_owned(), |value| {
            format!("printed {value:?}")
        });
        return Some(format!(
            "{key} should be {expected:?}, but the program {printed}"
        ));
    }
    let outside = outside.value(key)?;
    (expected.contains(&outside) && !SAME_OUTSIDE.contains(&key))
        .then(|| format!("{key} is {outside:?} without a session, too"))
}

/// Checks that the program left exactly the expected file at the target.
fn file_problem(target: &Target, name: &str) -> Option<String> {
    let file = format!("{name}.done");
    let names = target.list("/srv/orders").unwrap_or_default();
    let content = target
        .read(&format!("/srv/orders/{file}"))
        .unwrap_or_else(|error| format!("{error:#}"));
    (names != [file.as_str()] || content != "first\nsecond\n")
        .then(|| format!("at the target are {names:?}, and {file} has {content:?}"))
}
